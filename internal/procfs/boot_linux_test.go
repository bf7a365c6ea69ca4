// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBootTimeIsTheKernels compares the boot time with /proc/stat. The kernel rounds the
// time down to whole seconds.
func TestBootTimeIsTheKernels(t *testing.T) {
	b, err := os.ReadFile("/proc/stat")
	require.NoError(t, err)
	_, after, ok := bytes.Cut(b, []byte("\nbtime "))
	require.True(t, ok)
	line, _, _ := bytes.Cut(after, []byte("\n"))
	seconds, err := strconv.ParseInt(string(line), 10, 64)
	require.NoError(t, err)
	boot := BootTime()
	require.Equal(t, boot, boot.Round(Tick))
	require.WithinRange(t, boot, time.Unix(seconds, 0).Add(-Tick), time.Unix(seconds+1, 0).Add(Tick))
}

func TestProcessIsTheOneThatHasThePID(t *testing.T) {
	before := Now()
	p, err := At("").Process(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), p.PID)
	require.NotZero(t, p.Start)
	require.LessOrEqual(t, p.Start, before)
	require.Equal(t, os.Getpid(), At("").OwnPID())
	_, err = At("/").Process(1 << 30)
	require.True(t, IsGone(err), err)
}

func TestOpenFileLimit(t *testing.T) {
	require.Positive(t, OpenFileLimit())
	require.LessOrEqual(t, OpenFileLimit(), 1<<30)
}
