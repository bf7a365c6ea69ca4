// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"maps"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/series"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

// These constants limit the data in memory and in the database. The limits are
// needed because programs and hosts choose the names in the data. Each comment describes
// the data that the store drops when the limit is reached.
const (
	maxUnits      = 10_000               // drops units that have been gone longest; if no unit is gone, drops new units
	maxConditions = series.MaxConditions // per unit: drops new conditions
	maxSeries     = 50_000               // in all units: drops new conditions
	maxStates     = 64                   // policies per unit: drops states that are gone, then new states
	maxHead       = 500_000              // in all units, not yet in a block: drops new readings
	maxSeriesHead = 2_000                // per condition, not yet in a block: drops new readings
	maxQueued     = 32 << 20             // bytes of blocks, records and events that are not yet on disk: drops the oldest

	maxUnitPeers = 64     // per unit: drops new peers
	maxPeers     = 20_000 // in all units: drops new peers

	maxOpenings     = 10_000 // drops old baselines, then the oldest openings
	maxUnitOpenings = 1_000  // per unit: drops the oldest
	maxRequests     = 10     // per opening: drops the last
	maxWaits        = 8      // kinds of waits per request: drops the last in the order of the names
	maxWithRequests = 1_000  // openings: the oldest loses its requests
	maxRefusals     = 20_000 // drops the oldest refusal
	maxChanges      = 256    // of policies: drops the oldest change
	maxThresholds   = 16     // per condition in PolicySummary

	maxInstances     = 256    // drops the collector that has been silent longest
	maxMetrics       = 1_000  // per instance: drops new metrics
	maxAllMetrics    = 50_000 // in all instances: drops new metrics
	maxStartLogs     = 64     // per start of an instance: drops new logs
	maxLogs          = 10_000 // warnings of all instances, and again startup logs: drops the oldest
	maxLogAttributes = 16

	maxName          = 256     // bytes of a name: of a policy, a monitor, a metric, a reason
	maxText          = 1024    // bytes of any other text
	maxAttributes    = 32      // per resource
	maxResource      = 4 << 10 // bytes of the attributes of a resource
	maxResources     = 16 << 20
	maxListedChanges = 64 // policies in a change
)

// identity lists the attributes that a resource keeps if there is no
// room for all attributes.
var identity = []string{
	attr.ServiceName, attr.ServiceNamespace, attr.ContainerID, attr.NamespaceName, attr.PodName, attr.ContainerName,
	attr.ExecutableName, attr.PID, attr.HostName,
}

// cutText truncates a string to at most n bytes of valid UTF-8. A truncated string is a
// copy, so that the memory of the original can be freed.
func cutText(s string, n int) string {
	return strings.ToValidUTF8(truncate.Cut(s, n), "\uFFFD")
}

// cutNames truncates names to maxName.
func cutNames(names ...*string) {
	for _, name := range names {
		*name = cutText(*name, maxName)
	}
}

// boundAttributes returns at most n attributes, with at most the given number of bytes in
// total. The attributes in identity come first. All other attributes follow in the order
// of their names. cut reports whether attributes were omitted.
func boundAttributes(all map[string]string, n, bytes int) (kept map[string]string, size int, cut bool) {
	kept = make(map[string]string, min(len(all), n))
	for _, name := range slices.Concat(identity, slices.Sorted(maps.Keys(all))) {
		value, found := all[name]
		k, v := cutText(name, maxName), cutText(value, maxText)
		if _, twice := kept[k]; twice || !found {
			continue
		}
		if len(kept) >= n || size+len(k)+len(v) > bytes {
			cut = true
			continue
		}
		kept[k] = v
		size += len(k) + len(v)
	}
	return kept, size, cut
}
