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

// Capture is a part of a batch to record. It has the profiles of one unit and one capture
// window, and exactly their part of the dictionary.
type Capture struct {
	Unit       *trigger.Decision
	Start, End time.Time
	Dry        bool // the gate of a dry run is open for the capture
	Samples    int
	Data       []byte // output of Pack
}

// Pack marshals profiles. They must not be used afterwards, because the attributes of their
// resources become references into the dictionary. The capacity of the result is its memory
// size.
func Pack(pd pprofile.Profiles) ([]byte, error) {
	b, err := pprofileotlp.NewExportRequestFromProfiles(pd).MarshalProto()
	// append rounds the capacity up to the size that the allocator returns.
	return append([]byte(nil), b...), err
}

// Unpack is the inverse of Pack. The strings of resources stay in the dictionary.
func Unpack(data []byte) (pprofile.Profiles, error) {
	request := pprofileotlp.NewExportRequest()
	err := request.UnmarshalProto(data)
	return request.Profiles(), err
}

// record is a capture that is held. Its times are relative to the recorder's base.
type record struct {
	data       []byte
	start, end int64 // nanoseconds
	samples    int32
	state      state
	dry        bool // the gate of a dry run is or was open for the record
	refused    bool // the next component refused the record before
}

// state is the state of a record. It changes from waiting to due to sending. It changes
// back from sending to due if the next component refused the record.
type state uint8

const (
	waiting state = iota // until its unit's gate opens
	due                  // until it is its turn to be sent
	sending              // the sender sends it now
)

// unitRecords are the records of one unit, in order of capture.
type unitRecords struct {
	unit    *trigger.Decision
	records []record
	size    int     // bytes of memory, including this struct
	heat    float64 // at the last sweep
	index   int     // in coldest
	due     int     // records that are due or sending
	queued  bool    // it is in Recorder.due
	sending bool    // one of the records is being sent; records are sent in order
	resting bool    // the next component refused a record; until the next evaluation
}

// recordSize and unitRecordsSize are the memory of a unit beside the data of its records.
// unitRecordsSize includes the struct, its entries in the heap and the queue, and its entry
// in the map. The entry in the map is a key and a pointer, with the map's spare room.
const (
	recordSize      = int(unsafe.Sizeof(record{}))
	unitRecordsSize = int(unsafe.Sizeof(unitRecords{})) + 48 + 16
)

// indexOf returns the index at which a record belongs, behind the records with the same
// start time. known reports whether the record is already there.
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
