// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
)

// Status reports the component's status. The status is OK, or a recoverable error that
// contains all current problems.
type Status struct {
	Host component.Host

	mu     sync.Mutex
	errors [numParts]error
}

// Part is a part of the receiver with its own status.
type Part int

// These are the parts of the receiver that report a status.
const (
	Sampling Part = iota
	Reading
	numParts
)

// Report sets the status of a part. nil means OK.
func (s *Status) Report(of Part, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors[of] = err
	event := componentstatus.NewEvent(componentstatus.StatusOK)
	if err := errors.Join(s.errors[:]...); err != nil {
		event = componentstatus.NewRecoverableErrorEvent(err)
	}
	componentstatus.ReportStatus(s.Host, event)
}
