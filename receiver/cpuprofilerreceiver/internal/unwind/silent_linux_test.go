// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestFileThatDoesNotAnswerCostsItsOwnTable(t *testing.T) {
	mount := hosttest.NewMount(t, map[string][]byte{"program": object(oneFunction(), "0123", true)})
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, object(oneFunction(), "0123", true), 0o600))
	runner := stuckread.New(zap.NewNop(), nil, nil)
	c := NewCache(Config{Access: mappedfile.Access{Runner: runner}, Open: func(c *stuckread.Call, m *samples.Mapping) (f *os.File, id mappedfile.ID, err error) {
		c.Wait(nil, func() { f, id, err = open(nil, m) })
		return f, id, err
	}})
	t.Cleanup(c.Close)
	t.Cleanup(mount.Go)
	silent := &samples.Mapping{Path: filepath.Join(mount.Dir, "program"), DeviceMinor: 50, Inode: 2}
	mount.Stop()
	c.Lookup(silent)
	require.Eventually(t, func() bool { return runner.Stats().Stuck == 1 }, time.Minute, time.Millisecond)
	answers := &samples.Mapping{Path: other, Inode: 1}
	require.Eventually(t, func() bool { table, _ := c.Lookup(answers); return table != nil }, time.Minute, time.Millisecond)
	table, ready := c.Lookup(silent)
	require.Nil(t, table)
	require.False(t, ready)
	mount.Go()
	require.Eventually(t, func() bool { table, _ := c.Lookup(silent); return table != nil }, time.Minute, time.Millisecond)
}
