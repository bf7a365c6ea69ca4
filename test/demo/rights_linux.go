// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// mayProfileOwn returns an error if users may not sample their own processes. The error
// explains how to permit it.
func mayProfileOwn() error {
	if err := perfevent.Probe().Own; err != nil {
		return fmt.Errorf("this host does not let users sample their own processes: either run `sudo make run`, or permit it with `sudo sysctl kernel.perf_event_paranoid=2` (%w)", err)
	}
	return nil
}
