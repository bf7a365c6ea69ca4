// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// processAttributes are the resource attributes that differ between processes of
// one program. Backends make a series of each combination of resource
// attributes, so these are removed from what leaves, except those listed in
// keep_process_attributes. Names are those of the semantic conventions 1.43.
var processAttributes = []string{
	attr.Command,
	attr.CommandArgs,
	attr.CommandLine,
	attr.CreationTime,
	attr.ExecutablePath,
	attr.GroupLeaderPID,
	attr.Interactive,
	attr.Cgroup,
	attr.ParentPID,
	attr.PID,
	attr.SessionLeaderPID,
	attr.Title,
	attr.VPID,
	attr.WorkingDirectory,
}

// attributeFilter removes process attributes from resources.
type attributeFilter map[string]bool // names to remove

// newAttributeFilter returns a filter that removes processAttributes except keep.
func newAttributeFilter(keep []string) attributeFilter {
	remove := attributeFilter{}
	for _, name := range processAttributes {
		if !slices.Contains(keep, name) {
			remove[name] = true
		}
	}
	return remove
}

func (f attributeFilter) apply(resource pcommon.Map) {
	resource.RemoveIf(func(name string, _ pcommon.Value) bool { return f[name] })
}

// applyTo is apply for one attribute alone.
func (f attributeFilter) applyTo(resource pcommon.Map, name string) {
	if f[name] {
		resource.Remove(name)
	}
}
