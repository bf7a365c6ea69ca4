// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"encoding/binary"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/programtest"
)

func TestSampleHasTheUsersStack(t *testing.T) {
	for _, size := range []int{1024, 16384, MaxUserStack} {
		s, err := Open(Options{Period: time.Millisecond, UserStack: size})
		if err != nil {
			hosttest.SkipUnprivileged(t, "%v", err)
		}
		cmd := exec.Command(programtest.Binary(t))
		cmd.Env = programtest.Env("spin")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		require.Eventually(t, func() bool {
			_, err = s.AttachProcess(cmd.Process.Pid)
			return err == nil
		}, programtest.Deadline, time.Millisecond)
		var rec Record
		n, checked := 0, 0
		for end := time.Now().Add(programtest.Deadline); n < 100 && time.Now().Before(end); {
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

// TestUserStackChangesWithoutMissingTime reads samples before, during and after a change
// of the stack size. No sample may be read twice, and each sample must refer to the
// correct attachment.
func TestUserStackChangesWithoutMissingTime(t *testing.T) {
	cmd := exec.Command(programtest.Binary(t))
	cmd.Env = programtest.Env("spin")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for name, hostWide := range map[string]bool{"process": false, "host": true} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(Options{Period: time.Millisecond, UserStack: 16384, HostWide: hostWide, Kernel: KernelTime})
			if err != nil {
				hosttest.SkipUnprivileged(t, "%v", err)
			}
			defer func() { require.NoError(t, s.Close()) }()
			var a *Attachment
			if hostWide {
				a, err = s.AttachHost()
			} else {
				a, err = s.AttachProcess(cmd.Process.Pid)
			}
			require.NoError(t, err)
			var rec Record
			for _, size := range []int{2048, 8192, 2048} {
				got, err := s.SetUserStack(size)
				require.NoError(t, err)
				require.Equal(t, size, got)
				n, largest := 0, 0
				last := int64(0)
				for end := time.Now().Add(programtest.Deadline); n < 200 && time.Now().Before(end); {
					require.NoError(t, s.Wait(20*time.Millisecond))
					for s.Read(&rec) {
						if rec.Type != TypeSample || rec.PID != cmd.Process.Pid {
							continue
						}
						require.Same(t, a, rec.Attachment)
						if n++; n > 50 { // the samples of the previous size have been read
							largest = max(largest, len(rec.Sample.Stack))
						}
						require.NotEqual(t, last, rec.Time)
						last = rec.Time
					}
				}
				require.Positive(t, largest)
				require.LessOrEqual(t, largest, size)
			}
			require.Zero(t, s.Stats().Corrupt)
		})
	}
}

func TestUserStackFitsItsRing(t *testing.T) {
	s, err := Open(Options{UserStack: 1024, SampleRing: 64 << 10, HostWide: true})
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	defer func() { require.NoError(t, s.Close()) }()
	got, err := s.SetUserStack(MaxUserStack)
	require.NoError(t, err)
	require.Equal(t, (64<<10)/leastCopies, got)

	none, err := Open(Options{HostWide: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, none.Close()) }()
	_, err = none.SetUserStack(1024)
	require.ErrorContains(t, err, "the session copies 0")
}

// TestPromptSamplesAreReadOneByOne checks that single samples wake the reader. Without
// SetPrompt, the reader would wake up only after several hundred samples.
func TestPromptSamplesAreReadOneByOne(t *testing.T) {
	cmd := exec.Command(programtest.Binary(t))
	cmd.Env = programtest.Env("spin")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	s, err := Open(Options{Period: 10 * time.Millisecond, HostWide: true, Kernel: KernelTime})
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.AttachHost()
	require.NoError(t, err)
	require.NoError(t, s.SetPrompt(true))
	require.NoError(t, s.SetPrompt(true))
	var rec Record
	rounds, samples := 0, 0
	for end := time.Now().Add(programtest.Deadline); samples < 40 && time.Now().Before(end); {
		require.NoError(t, s.Wait(programtest.Deadline))
		before := samples
		for s.Read(&rec) {
			if rec.Type == TypeSample {
				samples++
			}
		}
		if samples > before {
			rounds++
		}
	}
	require.GreaterOrEqual(t, samples, 40)
	require.Greater(t, rounds, 5)
	require.NoError(t, s.SetPrompt(false))
	require.False(t, s.prompt)
}
