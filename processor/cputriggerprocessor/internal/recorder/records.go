// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"
	"unsafe"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/order"
)

// Capture is a part of a batch to record. It contains the profiles of one unit and one
// capture window, and the part of the dictionary that these profiles use.
type Capture struct {
	Unit       *trigger.Decision
	Start, End time.Time
	Dry        bool // the gate of a dry run was open for the profiles
	Linked     bool // samples have links to spans, which may not have ended yet
	Samples    int
	Data       []byte // output of Pack
}

// Pack marshals profiles. The profiles must not be used afterwards, because their resource
// attributes become references into the dictionary. The capacity of the result is its size
// in memory.
func Pack(pd pprofile.Profiles) ([]byte, error) {
	b, err := pprofileotlp.NewExportRequestFromProfiles(pd).MarshalProto()
	// The copy has the whole capacity that the allocator provides, so its capacity is its size
	// in memory.
	return append([]byte(nil), b...), err
}

// Unpack is the inverse of Pack, except that resource attributes still refer
// to strings in the dictionary.
func Unpack(data []byte) (pprofile.Profiles, error) {
	request := pprofileotlp.NewExportRequest()
	err := request.UnmarshalProto(data)
	return request.Profiles(), err
}

// record is a recorded capture. Its times are relative to the recorder's base.
type record struct {
	data       []byte
	start, end int64 // nanoseconds
	samples    int32
	state      state
	dry        bool // the gate of a dry run was open for the record
	refused    bool // the next component refused the record before
}

// state is the state of a record. It changes from waiting to due and then to sending. If
// the next component refuses the record, its state changes back to due.
type state uint8

const (
	waiting state = iota // the record waits for the gate to open
	due                  // the record waits for its turn to be sent
	sending              // the sender is sending the record
)

// unitRecords contains the records of one unit in the order of capture.
type unitRecords struct {
	unit    *trigger.Decision
	records []record
	size    int     // bytes of memory, including this struct
	heat    float64 // at the last sweep
	index   int     // in Recorder.cold, plus 1
	due     int     // records that are due or sending
	queued  bool    // it is in Recorder.due
	sending bool    // one of the records is being sent; records are sent in order
	linked  bool    // its records wait for spans
	resting bool    // the next component refused a record, so the unit waits for the next evaluation
}

// compare orders units for eviction. Units without a due record come first. Within each
// group, units are ordered by heat, and then by name.
func (t *unitRecords) compare(o *unitRecords) int {
	return cmp.Or(order.Bools(t.due > 0, o.due > 0), cmp.Compare(t.heat, o.heat), strings.Compare(t.unit.Name(), o.unit.Name()))
}

// recordSize and unitRecordsSize are the memory that the recorder needs in
// addition to the data of the records. unitRecordsSize includes the unit's
// entries in the heap, the queue and the map. A map entry is a key, a pointer and
// a share of the map's unused space.
const (
	recordSize      = int(unsafe.Sizeof(record{}))
	unitRecordsSize = int(unsafe.Sizeof(unitRecords{})) + 48 + 16
)

// indexOf returns the index at which to insert a record, behind the records with the same
// start time. known reports whether an identical record exists.
func (t *unitRecords) indexOf(rec record) (at int, known bool) {
	at = len(t.records)
	for at > 0 && t.records[at-1].start > rec.start && t.records[at-1].state != sending {
		at--
	}
	for i := at - 1; i >= 0 && t.records[i].start == rec.start; i-- {
		if bytes.Equal(t.records[i].data, rec.data) {
			return at, true
		}
	}
	return at, false
}

func (t *unitRecords) indexInState(s state) int {
	return slices.IndexFunc(t.records, func(rec record) bool { return rec.state == s })
}
