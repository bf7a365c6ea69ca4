// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"hash/maphash"
	"slices"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// start is the start time of a profile in a series. The series is a hash of
// the profile's labels and type.
type start struct {
	series uint64
	at     pcommon.Timestamp
}

// starts maps each used start time to an earlier time that may be free. If there are too
// many start times, the older half is forgotten. starts is safe for concurrent use.
type starts struct {
	mu          sync.Mutex
	used, older map[start]pcommon.Timestamp
}

const maxStarts = 1 << 13

// taken contains the original start time of a profile, and the start time that replaced
// it.
type taken struct{ first, got start }

// take marks the start time of a profile as used. If the start time was already used,
// take uses an earlier time instead.
func (t *starts) take(series uint64, at pcommon.Timestamp) taken {
	first := start{series, at}
	s := first
	for {
		next, ok := t.used[s]
		if !ok {
			next, ok = t.older[s]
		}
		if !ok {
			break
		}
		s.at = next
	}
	if t.used == nil || len(t.used) >= maxStarts {
		t.used, t.older = make(map[start]pcommon.Timestamp), t.used
	}
	t.used[s], t.used[first] = s.at-1, s.at-1
	return taken{first, s}
}

// giveBack undoes take for profiles that were refused. These profiles get the same
// times when they are sent again.
func (t *starts) giveBack(all []taken) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range slices.Backward(all) {
		delete(t.used, of.got)
		delete(t.older, of.got)
		if of.first != of.got {
			t.used[of.first] = of.got.at
		}
	}
}

var seed = maphash.MakeSeed()

// separate makes the start times of all profiles of a series different. Pyroscope's
// compaction keeps only one of several profiles that start in the same nanosecond.
// Without process attributes, all processes of a unit form one series. The times also
// differ between batches, because an exporter may join batches. separate moves the start
// of a profile back by as many nanoseconds as necessary, and keeps the end. It does not
// change profiles without a time. It appends the times to a list for giveBack.
func (t *starts) separate(out pprofile.Profiles, list []taken) []taken {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := out.Dictionary().StringTable()
	for _, rp := range out.ResourceProfiles().All() {
		if _, labelled := rp.Resource().Attributes().Get(attr.TriggerPolicy); !labelled {
			continue // the profiles match no unit, and pass unchanged
		}
		resource := hashOf(rp.Resource().Attributes())
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				if profile.Time() == 0 {
					continue
				}
				var h maphash.Hash
				h.SetSeed(seed)
				for _, typ := range [...]pprofile.ValueType{profile.SampleType(), profile.PeriodType()} {
					for _, i := range [...]int32{typ.TypeStrindex(), typ.UnitStrindex()} {
						if i >= 0 && int(i) < text.Len() {
							_, _ = h.WriteString(text.At(int(i)))
						}
						_ = h.WriteByte(0)
					}
				}
				of := t.take(resource+h.Sum64(), profile.Time())
				list = append(list, of)
				if earlier := profile.Time() - of.got.at; earlier > 0 {
					profile.SetTime(of.got.at)
					profile.SetDurationNano(profile.DurationNano() + uint64(earlier))
				}
			}
		}
	}
	return list
}

// hashOf returns a hash of the attributes that does not depend on their order. It ignores
// attributes that are not strings, because Pyroscope does not use them as labels.
func hashOf(attributes pcommon.Map) (sum uint64) {
	for key, value := range attributes.All() {
		if value.Type() != pcommon.ValueTypeStr {
			continue
		}
		var h maphash.Hash
		h.SetSeed(seed)
		_, _ = h.WriteString(key)
		_ = h.WriteByte(0)
		_, _ = h.WriteString(value.Str())
		sum += h.Sum64()
	}
	return sum
}
