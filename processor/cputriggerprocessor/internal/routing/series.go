// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"hash/maphash"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// start is the begin of a profile in a series. Types are indices into the dictionary.
type start struct {
	resource             uint64
	typ, unit            int32
	period, unitOfPeriod int32
	at                   pcommon.Timestamp
}

var seed = maphash.MakeSeed()

// separate lets profiles of one series begin at different times: Pyroscope's compaction
// keeps one of several that begin at the same nanosecond. The processes of a unit are one
// series once the attributes that identify them are removed. A profile begins earlier by
// the nanoseconds that it takes, and ends when it did. A profile without a time gets none.
func (p *plan) separate(out pprofile.Profiles) {
	if out.ResourceProfiles().Len() < 2 {
		return
	}
	clear(p.starts)
	for _, rp := range out.ResourceProfiles().All() {
		if _, labelled := rp.Resource().Attributes().Get(attr.TriggerPolicy); !labelled {
			continue // it matches no unit, and passes as it is
		}
		resource := hashOf(rp.Resource().Attributes())
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				if profile.Time() == 0 {
					continue
				}
				of, by := profile.SampleType(), profile.PeriodType()
				first := start{resource, of.TypeStrindex(), of.UnitStrindex(), by.TypeStrindex(), by.UnitStrindex(), profile.Time()}
				s := first
				for next, taken := p.starts[s]; taken; next, taken = p.starts[s] {
					s.at = next
				}
				p.starts[s], p.starts[first] = s.at-1, s.at-1
				if earlier := profile.Time() - s.at; earlier > 0 {
					profile.SetTime(s.at)
					profile.SetDurationNano(profile.DurationNano() + uint64(earlier))
				}
			}
		}
	}
}

// hashOf returns a number that is the same for the same attributes in any order. Those
// that are no text are no labels in Pyroscope.
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
