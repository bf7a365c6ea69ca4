// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"hash/maphash"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// start is the begin of a profile in a series. Its types are indices into the dictionary.
type start struct {
	resource             uint64
	typ, unit            int32
	period, unitOfPeriod int32
	at                   pcommon.Timestamp
}

var seed = maphash.MakeSeed()

// separate makes profiles of one series begin at different times. Pyroscope's compaction
// keeps only one of several profiles that begin at the same nanosecond. The processes of a
// unit are one series after their process attributes are removed. A profile begins earlier
// by as many nanoseconds as needed, and its end stays. A profile without a time is not
// changed.
func (p *plan) separate(out pprofile.Profiles) {
	if out.ResourceProfiles().Len() < 2 {
		return
	}
	clear(p.starts)
	for _, rp := range out.ResourceProfiles().All() {
		if _, labelled := rp.Resource().Attributes().Get(attr.TriggerPolicy); !labelled {
			continue // it matches no unit, and passes unchanged
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

// hashOf returns a hash of the attributes that does not depend on their order. It ignores
// attributes that are not text, because they are no labels in Pyroscope.
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
