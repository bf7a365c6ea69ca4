// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"hash/maphash"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// start is the start time of a profile in a series. Types and units are string table
// indices.
type start struct {
	resource             uint64
	typ, unit            int32
	period, unitOfPeriod int32
	at                   pcommon.Timestamp
}

var seed = maphash.MakeSeed()

// separate gives profiles of one series different start times. Pyroscope's compaction keeps
// only one of several profiles that start in the same nanosecond. Without process
// attributes, all processes of a unit form one series. separate moves the start of a
// profile back by as many nanoseconds as necessary, and keeps the end. It does not change
// profiles without a time.
func (p *plan) separate(out pprofile.Profiles) {
	if out.ResourceProfiles().Len() < 2 {
		return
	}
	clear(p.starts)
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
