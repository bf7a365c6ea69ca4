// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/policyfile"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/unitmatch"
)

// formMonitors lists the monitors that the form offers. A condition with one of these
// monitors only needs a threshold.
var formMonitors = []string{
	"cpu_utilization", "cpu_usage", "cpu_busiest_thread", "cpu_bottleneck", "cpu_throttling", "cpu_request_utilization",
	"cpu_pressure", "host_cpu_utilization", "system_load", "memory_utilization", "memory_pressure", "io_pressure",
	"thread_count", "tcp_connect_failures", "tcp_retransmits", "tcp_rtt",
}

// formKeys lists the keys of match that the form suggests.
var formKeys = []string{
	attr.ServiceName, unitmatch.CgroupKey, attr.ContainerID, attr.ContainerName, attr.NamespaceName, attr.PodName,
	"k8s.deployment.name", attr.ExecutableName,
}

// policyForm is the form of one policy.
type policyForm struct {
	policyfile.Policy
	// Editing is the name of the policy in the text. It is empty for a new policy.
	Editing string
	// Names are the names of the policies in the text. If there is no form,
	// Unreadable is the reason.
	Names      []string
	Unreadable string
	Monitors   []string
	Keys       []string
	// Faults maps the name of a field to its fault.
	Faults map[string]string
	// Matching describes the number of units that the policy currently matches.
	Matching string
}

// newPolicyForm returns the form for the policy called name in a policy file's text. If
// there is no such policy, the form is for a new policy.
func newPolicyForm(text, name string) *policyForm {
	f := &policyForm{Keys: formKeys, Faults: map[string]string{}}
	policies, err := policyfile.Policies([]byte(text))
	if err != nil {
		f.Unreadable = err.Error()
		return f
	}
	f.Policy = policyfile.Policy{Monitor: formMonitors[0]}
	for _, p := range policies {
		f.Names = append(f.Names, p.Name)
		if p.Name == name && name != "" {
			f.Policy, f.Editing = p, name
		}
	}
	return f
}

// put reads the fields of a request, and puts the policy that they describe into the text.
// It returns the new text, or false if a field has a fault.
func (f *policyForm) put(text string, fields url.Values) (string, bool) {
	get := func(name string) string { return strings.TrimSpace(fields.Get("policy_" + name)) }
	f.Editing = fields.Get("editing")
	f.Policy = policyfile.Policy{
		Name: get("name"), Key: get("key"), Glob: get("glob"), Monitor: get("monitor"), Threshold: get("threshold"),
		AverageOver: get("average_over"), Duration: get("duration"), Cooldown: get("cooldown"),
	}
	switch {
	case f.Name == "":
		f.Faults["name"] = "A policy has a name."
	case f.Name != f.Editing && slices.Contains(f.Names, f.Name):
		f.Faults["name"] = "Another policy has this name."
	}
	switch {
	case (f.Key == "") != (f.Glob == ""):
		f.Faults["glob"] = "Name an attribute and its value, or neither for all units."
	case f.Key != "":
		if _, err := unitmatch.New(f.Key, f.Glob); err != nil {
			f.Faults["glob"] = err.Error()
		}
	}
	if _, err := strconv.ParseFloat(strings.TrimSuffix(f.Threshold, "%"), 64); err != nil {
		f.Faults["threshold"] = "The threshold is a number, such as 80."
	}
	for field, value := range map[string]string{"average_over": f.AverageOver, "duration": f.Duration, "cooldown": f.Cooldown} {
		if d, err := time.ParseDuration(value); value != "" && (err != nil || d < 0) {
			f.Faults[field] = "A time has a unit, such as 30s, 5m or 4h; nothing stands for the default."
		}
	}
	if len(f.Faults) > 0 {
		return text, false
	}
	changed, err := policyfile.Put([]byte(text), f.Editing, f.Policy)
	if err != nil {
		f.Faults["name"] = err.Error()
		return text, false
	}
	return string(changed), true
}

// matching describes the number of current units whose value for a key matches a glob.
func matching(units []store.UnitSummary, key, glob string, now time.Time) string {
	matches := func(string) bool { return true }
	if key != "" {
		var err error
		if matches, err = unitmatch.New(key, glob); err != nil {
			return ""
		}
	}
	matched, known := 0, 0
	for _, u := range units {
		if now.Sub(u.Last) > quietAfter {
			continue
		}
		value, ok := u.Resource[key]
		switch {
		case key == "":
			ok = true
		case key == unitmatch.CgroupKey:
			if value, ok = u.Resource[attr.Cgroup]; !ok && strings.HasPrefix(u.Name, "/") {
				value, ok = u.Name, true
			}
		case key == attr.ContainerID && !ok && isContainerID(u.Name):
			value, ok = u.Name, true
		}
		// A service without a name gets the name unknown_service only after policies have
		// been matched, so the name unknown_service is not compared with the glob.
		if !ok || key == attr.ServiceName && isUnnamed(value) {
			continue
		}
		known++
		if matches(value) {
			matched++
		}
	}
	if known == 0 && key != "" {
		return fmt.Sprintf("No unit that the console knows has %s, so it cannot tell how many match.", cutText(60, key))
	}
	return plural(matched, "unit matches", "units match") + " now, of those that the console knows."
}

// fillForm completes the form for editing a policy file, unless the file is read-only.
func (s *Server) fillForm(file *filePart) {
	if file.ReadOnly != "" {
		return
	}
	if file.Form == nil {
		file.Form = newPolicyForm(file.Text, "")
	}
	f := file.Form
	f.Monitors = slices.Clip(formMonitors)
	if f.Monitor != "" && !slices.Contains(formMonitors, f.Monitor) { // keep a monitor that the form does not offer
		f.Monitors = append(f.Monitors, f.Monitor)
	}
	f.Matching = matching(s.Store.Units(), f.Key, f.Glob, s.Now())
}
