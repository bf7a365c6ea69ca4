// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

func TestUserTimes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.stat")
	u := &userTimes{readNow: func() (uint64, uint64, bool) { return readTimes(file, "user_usec", "system_usec") }}
	var none *userTimes
	epoch := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	none.read(epoch)
	require.Negative(t, none.share())
	u.read(epoch)
	require.Negative(t, u.share(), "there is no file")

	at := func(seconds int, content string) {
		write(t, file, content)
		u.read(epoch.Add(time.Duration(seconds) * time.Second))
	}
	at(0, "usage_usec 9\nuser_usec 1000\nsystem_usec 5000\n")
	require.Negative(t, u.share(), "one reading is no span")
	at(1, "usage_usec 9\nuser_usec 1300\nsystem_usec 5100\n")
	require.InDelta(t, 0.75, u.share(), 1e-9, "what was before it became warm does not count")
	at(30, "user_usec 2000\nsystem_usec 5100\n")
	at(60, "user_usec 2000\nsystem_usec 6100\n")
	at(61, "user_usec 2000\nsystem_usec 6100\n")
	require.InDelta(t, 0, u.share(), 1e-9, "nor what is long ago")
	at(62, "user_usec 10\nsystem_usec 10\n")
	require.Negative(t, u.share(), "it began anew")
	at(63, "nonsense\n")
	require.Negative(t, u.share())
}
