// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

func (c *checker) resourceProfiles(where string, rp pprofile.ResourceProfiles) {
	labels := c.owned(where, rp.Resource().Attributes())
	c.serviceName(where, rp.Resource().Attributes())
	profiles := 0
	for _, sp := range rp.ScopeProfiles().All() {
		all := append(slices.Clone(labels), c.owned(where+", scope", sp.Scope().Attributes())...)
		for i, p := range sp.Profiles().All() {
			profiles++
			c.begin(fmt.Sprintf("%s, profile %d", where, i), rp.Resource().Attributes(), p)
			c.profile(fmt.Sprintf("%s, profile %d", where, i), all, p)
		}
	}
	if profiles == 0 {
		c.broken(NoSamples, "%s has no profile", where)
	}
}

// begin checks that no two profiles of a series begin at the same time.
func (c *checker) begin(where string, resource pcommon.Map, p pprofile.Profile) {
	if _, before := resource.Get(attr.PID); before || !c.opts.Triggered {
		return // only cpu_trigger ensures different times, and it removes the pid
	}
	labels := labelsOf(nil, resource)
	slices.Sort(labels)
	series := fmt.Sprint(labels, p.SampleType().TypeStrindex(), p.SampleType().UnitStrindex(), p.PeriodType().TypeStrindex(), p.PeriodType().UnitStrindex(), p.Time())
	if c.begins[series] {
		c.broken(DistinctTimes, "%s begins when another of its series does", where)
	}
	c.begins[series] = true
}

// serviceName checks the service.name of a resource, if profiles have passed cpu_trigger.
func (c *checker) serviceName(where string, attributes pcommon.Map) {
	if !c.opts.Triggered {
		return
	}
	v, ok := attributes.Get(attr.ServiceName)
	if !ok || v.AsString() == "" {
		c.broken(ServiceName, "%s has no service.name", where)
		return
	}
	if v.Type() != pcommon.ValueTypeStr {
		c.broken(ServiceName, "%s has a service.name of type %s", where, v.Type())
	}
	if e, ok := attributes.Get(attr.ExecutableName); ok && v.AsString() == "unknown_service" && e.AsString() != "" {
		c.broken(ServiceName, "%s is %s, want %[2]s:%s", where, v.AsString(), e.AsString())
	}
}

// owned checks the attributes of a resource or scope. It
// returns the keys of the attributes.
func (c *checker) owned(where string, attributes pcommon.Map) []string {
	var keys []string
	for k, v := range attributes.All() {
		if k == "" {
			c.broken(AttributeKey, "%s has an attribute without a key", where)
		}
		if slices.Contains(keys, k) {
			c.broken(AttributeKey, "%s has %q twice", where, k)
		}
		keys = append(keys, k)
		c.validText(k, v, where)
		c.text(k, v, where)
		c.label(where, k, v)
		if c.opts.References {
			c.referenced(k)
			if v.Type() == pcommon.ValueTypeStr {
				c.referenced(v.Str())
			}
		}
	}
	return keys
}

func (c *checker) referenced(s string) {
	for i, have := range c.dict.StringTable().All() {
		if have == s {
			c.used["string"][i] = true
		}
	}
}

// label checks an attribute that backends convert to a label.
func (c *checker) label(where, key string, v pcommon.Value) {
	switch v.Type() {
	case pcommon.ValueTypeStr, pcommon.ValueTypeInt, pcommon.ValueTypeBool:
	default:
		c.broken(AttributeType, "%s has %s of type %s", where, key, v.Type())
	}
	if len(key) > maxLabelName || v.Type() == pcommon.ValueTypeStr && len(v.Str()) > maxLabelValue {
		c.broken(LabelLength, "%s has %.40s of %d and %d bytes, at most %d and %d", where, key, len(key), len(v.AsString()), maxLabelName, maxLabelValue)
	}
}

// labels checks the keys of a sample together with the keys
// of its scope and its resource.
func (c *checker) labels(where string, keys []string) {
	if len(keys) > maxLabels {
		c.broken(LabelCount, "%s has %d labels, at most %d: %s", where, len(keys), maxLabels, strings.Join(keys, ", "))
	}
	if n := c.opts.MaxLabels; n > 0 && len(keys) > n {
		c.broken(LabelPromise, "%s has %d labels, at most %d: %s", where, len(keys), n, strings.Join(keys, ", "))
	}
	seen := make(map[string]string, len(keys))
	for _, k := range keys {
		if other, ok := seen[labelName(k)]; ok {
			c.broken(LabelCollision, "%s has %s and %s", where, other, k)
		}
		seen[labelName(k)] = k
	}
}

// labelName replaces all characters except letters and digits with underscores.
func labelName(key string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, key)
}

func (c *checker) profile(where string, labels []string, p pprofile.Profile) {
	if p.ProfileID().IsEmpty() {
		c.broken(ProfileID, "%s has no id", where)
	}
	if p.Time() == 0 || p.DurationNano() == 0 {
		c.broken(CaptureWindow, "%s starts at %d and lasts %d ns", where, p.Time(), p.DurationNano())
	}
	if now := c.opts.Now; !now.IsZero() {
		if at := p.Time().AsTime(); at.Before(now.Add(-oldest)) || at.After(now.Add(newest)) {
			c.broken(Recent, "%s is of %s, now is %s", where, at, now.UTC())
		}
	}
	for _, a := range c.attributes(p.AttributeIndices(), where) {
		switch a.value.Type() {
		case pcommon.ValueTypeStr, pcommon.ValueTypeInt, pcommon.ValueTypeBool, pcommon.ValueTypeDouble:
		default:
			c.broken(AttributeType, "%s has %s of type %s", where, a.key, a.value.Type())
		}
	}

	n := p.Samples().Len()
	if n == 0 {
		c.broken(NoSamples, "%s has no samples", where)
	}
	if n > c.opts.MaxSamples {
		c.broken(MaxSamples, "%s has %d samples, at most %d", where, n, c.opts.MaxSamples)
	}
	if size := (&pprofile.ProtoMarshaler{}).ProfileSize(p); size > c.opts.MaxProfileBytes {
		c.broken(MaxProfileBytes, "%s has %d bytes, at most %d", where, size, c.opts.MaxProfileBytes)
	}
	seen := make(map[string]int, n)
	valued := c.types(where, p)
	for i, s := range p.Samples().All() {
		at := fmt.Sprintf("%s, sample %d", where, i)
		c.sample(at, labels, p, valued, s)
		attributes := slices.Sorted(slices.Values(s.AttributeIndices().AsRaw()))
		key := fmt.Sprint(s.StackIndex(), s.LinkIndex(), attributes)
		if first, ok := seen[key]; ok && !valued {
			c.broken(SampleTwice, "%s is of the same stack and attributes as sample %d", at, first)
		}
		seen[key] = i
	}
}

// typeOf returns a type in the form type/unit, and its two parts.
func (c *checker) typeOf(t pprofile.ValueType, where string) (whole, name, unit string) {
	name = c.string(t.TypeStrindex(), where)
	unit = c.string(t.UnitStrindex(), where)
	return name + "/" + unit, name, unit
}

// types checks the types of a profile. It reports whether
// samples of these types have values.
func (c *checker) types(where string, p pprofile.Profile) (valued bool) {
	sample, name, unit := c.typeOf(p.SampleType(), where)
	period, periodName, periodUnit := c.typeOf(p.PeriodType(), where)
	if periodName == "" || periodUnit == "" || p.Period() <= 0 {
		c.broken(Period, "%s has period %d of type %q", where, p.Period(), period)
	}
	if name == "" || unit == "" || strings.Contains(name, "-") || strings.Contains(periodName, "-") {
		c.broken(TypeName, "%s is of type %q, period %q", where, sample, period)
	}
	for _, s := range c.shapes[sample] {
		if s.period == period {
			return s.valued
		}
	}
	c.broken(KnownType, "%s is of type %q, period %q", where, sample, period)
	return false
}

func (c *checker) sample(where string, labels []string, p pprofile.Profile, valued bool, s pprofile.Sample) {
	c.stack(s.StackIndex(), where)
	c.use("link", s.LinkIndex(), where)

	values, stamps := s.Values().Len(), s.TimestampsUnixNano().Len()
	if values > 1 {
		c.broken(OneValue, "%s has %d values", where, values)
	}
	if valued {
		if values != 1 || stamps != 1 {
			c.broken(SampleShape, "%s has %d values and %d timestamps, want one of each", where, values, stamps)
		}
	} else if values != 0 || stamps == 0 {
		c.broken(SampleShape, "%s has %d values and %d timestamps, want timestamps alone", where, values, stamps)
	}
	start := uint64(p.Time())
	for _, t := range s.TimestampsUnixNano().All() {
		if t < start || t >= start+p.DurationNano() {
			c.broken(TimestampWindow, "%s was at %d, outside of [%d, %d)", where, t, start, start+p.DurationNano())
		}
	}

	attributes := c.attributes(s.AttributeIndices(), where)
	keys := slices.Clone(labels)
	for _, a := range attributes {
		c.label(where, a.key, a.value)
		if !slices.Contains(c.allowed, a.key) {
			c.broken(SeriesPerSample, "%s has %s", where, a.key)
		}
		if !slices.Contains(keys, a.key) {
			keys = append(keys, a.key)
		}
	}
	// Many samples share few sets of keys, so each set is checked only once.
	if set := strings.Join(keys, "\x00"); !c.keys[set] {
		c.keys[set] = true
		c.labels(where, keys)
	}
}
