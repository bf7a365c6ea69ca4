// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"cmp"
	"maps"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/profilefiles"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/reason"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

// Profiles stores the samples of profiles that passed a gate, and the openings of the
// gate. It neither changes nor keeps the profiles. The samples are on disk within 4
// seconds, unless the disk is slow.
func Profiles(to *store.Store, pd pprofile.Profiles) {
	d := dictionary.NewReader(pd.Dictionary())
	for _, rp := range pd.ResourceProfiles().All() {
		r := resourceOf(rp.Resource().Attributes())
		for _, sp := range rp.ScopeProfiles().All() {
			scope := pprofconv.Cut(sp.Scope().Name())
			for _, p := range sp.Profiles().All() {
				addProfile(to, d, r, scope, p)
			}
		}
	}
}

func addProfile(to *store.Store, d dictionary.Reader, r resource, scope string, p pprofile.Profile) {
	attributes := pprofconv.Attributes(d, p)
	opening := openingOfProfile(attributes, r)
	in := profilefiles.Samples{
		Origin:     r.all[attr.Origin],
		Scope:      scope,
		Executable: cmp.Or(r.all[attr.ExecutablePath], r.all[attr.ExecutableName]),
		Dictionary: d,
		Attributes: attributes,
	}
	for _, part := range pprofconv.PartsOf(d.ProfileType(p), p) {
		in.Part = part
		to.AddSamples(opening, in)
	}
}

// resource contains the attributes of a resource. kept contains the
// attributes that belong to the unit.
type resource struct{ all, kept map[string]string }

func resourceOf(attributes pcommon.Map) resource {
	r := resource{all: textsOf(attributes)}
	r.kept = maps.Clone(r.all)
	// Attributes that differ between the processes of a unit do not belong to the unit. The
	// attributes of the trigger belong to the opening.
	maps.DeleteFunc(r.kept, func(k, _ string) bool {
		return strings.HasPrefix(k, "process.") && k != attr.ExecutableName || strings.HasPrefix(k, attr.Prefix)
	})
	return r
}

// openingOfProfile returns the opening that the attributes of a profile describe.
func openingOfProfile(attributes map[string]string, r resource) store.Opening {
	const maxName = 256
	of := store.Unit{Host: clip(r.all[attr.HostName], maxName), Name: clip(attributes[attr.Unit], 4<<10), Resource: r.kept}
	return openingOf(of, reason.FromProfile(
		func(key string) string { return clip(attributes[key], maxName) },
		func(key string) string { return clip(r.all[key], maxName) }))
}

// openingOf returns the opening of a unit's gate for a reason.
func openingOf(of store.Unit, why reason.Reason) store.Opening {
	return store.Opening{
		ID: why.ID, Unit: of, Policy: why.Policy, Kind: why.Kind, Monitor: why.Monitor, Window: why.Window,
		Value: known(why.Value), Threshold: known(why.Threshold), Triggered: why.Time, Until: why.Until,
	}
}

// clip returns the first n bytes of a string. The result does not keep the rest of the string
// in memory.
func clip(s string, n int) string {
	return strings.ToValidUTF8(truncate.Cut(s, n), "")
}
