// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"slices"
	"time"
	"unsafe"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/hotprofile/hotprofile/internal/trigger"
)

// Capture is a part of a batch to record: profiles of one unit and one capture
// window, with exactly their part of the dictionary.
type Capture struct {
	Unit       *trigger.Decision
	Start, End time.Time
	Dry        bool // the gate of a dry run is open for it
	Samples    int
	Data       []byte // of Pack
}

// Pack marshals profiles, which must not be used afterwards: the attributes of their
// resources become references into the dictionary. The capacity of what it returns
// is the memory that it takes.
func Pack(pd pprofile.Profiles) ([]byte, error) {
	b, err := pprofileotlp.NewExportRequestFromProfiles(pd).MarshalProto()
	// append rounds the capacity up to what the allocator gives.
	return append([]byte(nil), b...), err
}

// Unpack is the inverse of Pack. The dictionary keeps the strings of resources.
func Unpack(data []byte) (pprofile.Profiles, error) {
	request := pprofileotlp.NewExportRequest()
	err := request.UnmarshalProto(data)
	return request.Profiles(), err
}

// record is a capture that is held. Times count from the recorder's base.
type record struct {
	data       []byte
	start, end int64 // nanoseconds
	samples    int32
	state      state
	dry        bool // the gate of a dry run is or was open for it
	refused    bool // the next component refused it before
}

// state of a record: waiting to due to sending; and from sending back to due if
// the next component refused it.
type state uint8

const (
	waiting state = iota // for its unit's gate to open
	due                  // for its turn to be sent
	sending              // by the sender now
)

// unitRecords are the records of one unit, in order of capture.
type unitRecords struct {
	unit    *trigger.Decision
	records []record
	size    int     // bytes of memory, with its own
	heat    float64 // as of the last sweep
	index   int     // in coldest
	due     int     // records that are due or sending
	queued  bool    // it is in Recorder.due
	sending bool    // one of the records is being sent: they leave in order
	resting bool    // the next component refused a record: until the next evaluation
}

// What unitRecords cost beside the data of the records: the struct, its entry in
// the map (a key and a pointer, with the map's spare room), in the heap and in
// the queue.
const (
	recordSize      = int(unsafe.Sizeof(record{}))
	unitRecordsSize = int(unsafe.Sizeof(unitRecords{})) + 48 + 16
)

// indexOf returns the index at which a record belongs, behind those with its
// start time, and whether the record is there already.
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
