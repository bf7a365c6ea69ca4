// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"encoding/binary"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/hosttest"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/perftest"
)

func TestSampleHasTheUsersStack(t *testing.T) {
	for _, size := range []int{1024, 16384, MaxUserStack} {
		s, err := Open(Options{Period: time.Millisecond, UserStack: size})
		if err != nil {
			hosttest.SkipUnprivileged(t, "%v", err)
		}
		cmd := exec.Command(perftest.Binary(t))
		cmd.Env = perftest.Env("spin")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		require.Eventually(t, func() bool {
			_, err = s.AttachProcess(cmd.Process.Pid)
			return err == nil
		}, perftest.Deadline, time.Millisecond)
		var rec Record
		n, checked := 0, 0
		for end := time.Now().Add(perftest.Deadline); n < 100 && time.Now().Before(end); {
			require.NoError(t, s.Wait(20*time.Millisecond))
			for s.Read(&rec) {
				if rec.Type != TypeSample || !rec.Sample.HasRegisters || len(rec.Sample.User) < 2 {
					continue
				}
				n++
				require.Equal(t, rec.Sample.User[0], rec.Sample.Registers.PC)
				require.LessOrEqual(t, len(rec.Sample.Stack), size)
				// The return address is above the frame pointer.
				at := rec.Sample.Registers.FP + 8 - rec.Sample.Registers.SP
				if at < uint64(len(rec.Sample.Stack))-8 {
					checked++
					require.Equal(t, rec.Sample.User[1], binary.NativeEndian.Uint64(rec.Sample.Stack[at:]))
				}
			}
		}
		require.GreaterOrEqual(t, n, 100)
		require.Positive(t, checked)
		require.Zero(t, s.Stats().Corrupt)
		require.NoError(t, s.Close())
	}
}
