// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeOf(t *testing.T) {
	boot := time.Date(2026, 1, 2, 3, 4, 5, 670_000_000, time.UTC)
	for name, c := range map[string]struct {
		boot  time.Time
		ticks uint64
		want  time.Time
	}{
		"at boot":           {boot, 0, boot},
		"a tick later":      {boot, 1, boot.Add(10 * time.Millisecond)},
		"a day later":       {boot, 8_640_000, boot.AddDate(0, 0, 1)},
		"an unknown boot":   {time.Time{}, 8_640_000, time.Time{}},
		"more than is true": {boot, 1<<64 - 1, boot.Add(maxTicks * Tick)},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, TimeOf(c.boot, c.ticks)) })
	}
}
