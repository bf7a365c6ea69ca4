// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// LoadSchedules reads all schedules in a directory and sorts them by name.
func LoadSchedules(dir string) ([]*Schedule, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	var all []*Schedule
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		s, err := ParseSchedule(strings.TrimSuffix(filepath.Base(f), ".txt"), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// FormatLabels returns one line per schedule, with the name and the labels of the schedule.
func FormatLabels(all []*Schedule) string {
	var b strings.Builder
	for _, s := range all {
		half := "scoring"
		if s.ForTuning() {
			half = "tuning"
		}
		fmt.Fprintf(&b, "%s (%s): %s\n", s.Name, half, LabelsOf(s))
	}
	return b.String()
}
