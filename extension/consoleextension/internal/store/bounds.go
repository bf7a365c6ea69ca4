// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/texts"
)

// Bounds of what the store keeps in memory, and so in the database. Programs and hosts
// choose the names in it. Each comment says what is dropped at the bound.
const (
	maxUnits      = 10_000  // units that are gone, the longest first; while all are there, new ones
	maxConditions = 64      // of a unit: those that it has no longer, then new ones
	maxSeries     = 50_000  // conditions of all units: new ones
	maxStates     = 64      // policies of a unit: new ones
	maxHead       = 500_000 // readings that are not yet on disk: new ones
	maxSeriesHead = 128     // of one condition: new ones

	maxUnitPeers = 64     // of a unit: new ones
	maxPeers     = 20_000 // of all units: new ones

	maxOpenings     = 10_000 // old baselines, then the oldest
	maxUnitOpenings = 1_000  // of a unit: its oldest
	maxRefusals     = 20_000 // the oldest
	maxUnitRefusals = 1_000  // of a unit: its oldest
	maxChanges      = 256    // of policies: the oldest
	maxThresholds   = 16     // of a condition in PolicySummary

	maxInstances     = 256    // the one that has been silent longest
	maxMetrics       = 1_000  // of an instance: new ones
	maxAllMetrics    = 50_000 // of all instances: new ones
	maxStartLogs     = 64     // of an instance: new ones
	maxWarnings      = 128    // of an instance: the oldest
	maxLogAttributes = 16

	maxName          = 256     // bytes of a name: of a policy, a monitor, a metric, a reason
	maxText          = 1024    // bytes of another text
	maxAttributes    = 32      // of a resource
	maxResource      = 4 << 10 // bytes of the attributes of a resource
	maxResources     = 16 << 20
	maxListedChanges = 64 // policies in a change
)

// identity are the attributes that a resource keeps when there is no room for more.
var identity = []string{
	attr.ServiceName, attr.ServiceNamespace, attr.ContainerID, attr.NamespaceName, attr.PodName, attr.ContainerName,
	attr.ExecutableName, attr.PID, attr.HostName,
}

// cutText returns the beginning of a text as valid UTF-8, in at most n bytes that do not
// keep the rest in memory.
func cutText(s string, n int) string {
	return strings.ToValidUTF8(texts.Cut(s, n), "\uFFFD")
}

// boundAttributes returns the attributes that are kept within n and bytes: those of
// identity first, then by name. cut reports whether there were more.
func boundAttributes(all map[string]string, n, bytes int) (kept map[string]string, size int, cut bool) {
	kept = make(map[string]string, min(len(all), n))
	keep := func(k, v string) {
		k, v = cutText(k, maxName), cutText(v, maxText)
		if _, ok := kept[k]; ok {
			return
		}
		if len(kept) >= n || size+len(k)+len(v) > bytes {
			cut = true
			return
		}
		kept[k] = v
		size += len(k) + len(v)
	}
	for _, k := range identity {
		if v, ok := all[k]; ok {
			keep(k, v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		keep(k, all[k])
	}
	return kept, size, cut
}
