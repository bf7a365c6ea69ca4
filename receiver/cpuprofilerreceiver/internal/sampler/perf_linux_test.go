// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// TestReadingFilesIsMeasuredApart checks that the CPU time for files does not affect the
// sampling frequency. The frequency depends on the cost of samples and names, and reading
// files has a separate budget. Otherwise a program with large files could lower the
// frequency for all programs.
func TestReadingFilesIsMeasuredApart(t *testing.T) {
	info, err := NewHostInfo("/", zap.NewNop())
	require.NoError(t, err)
	meters := new(Meters)
	p := NewPerf(PerfConfig{MaxMemory: 64 << 20, FileShare: 1}, &Shared{HostInfo: info, Status: &Status{Host: componenttest.NewNopHost()}, Logger: zap.NewNop()}, meters)
	defer func() { require.NoError(t, p.Stop(t.Context())) }()
	path, err := os.Executable()
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	p.Symbols.Track(&samples.Mapping{
		PID: os.Getpid(), Limit: 1 << 40, Path: path, Inode: st.Ino,
		DeviceMajor: unix.Major(st.Dev), DeviceMinor: unix.Minor(st.Dev),
	})
	require.Eventually(t, func() bool { return meters.Files.Total() > 0 }, time.Minute, time.Millisecond)
	require.Zero(t, meters.Samples.Total()+meters.Names.Total())
}
