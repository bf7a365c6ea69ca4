// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseStatus(t *testing.T) {
	const state = "State:\tS (sleeping)\n"
	for name, c := range map[string]struct {
		content string
		want    Status
		fails   bool
	}{
		"nested":             {content: state + "Pid:\t70\nUid:\t1\t2\t3\t4\nNSpid:\t70\t5\t1\n", want: Status{State: 'S', PID: 1, UIDs: [4]uint32{1, 2, 3, 4}}},
		"without NSpid":      {content: state + "Pid:\t70\nUid:\t1\t1\t1\t1\n", want: Status{State: 'S', PID: 70, UIDs: [4]uint32{1, 1, 1, 1}}},
		"a name that lies":   {content: "Name:\tNSpid: 9\n" + state + "Pid:\t70\nUid:\t0\t0\t0\t0\n", want: Status{State: 'S', PID: 70}},
		"switches":           {content: state + "Pid:\t70\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n", want: Status{State: 'S', PID: 70, Switches: 7}},
		"capabilities":       {content: state + "Pid:\t70\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n", want: Status{State: 'S', PID: 70, Capabilities: 1<<41 - 1}},
		"nothing":            {fails: true},
		"no state":           {content: "State:\nPid:\t70\nUid:\t0\t0\t0\t0\n", fails: true},
		"no pid":             {content: state + "Uid:\t1\t1\t1\t1\n", fails: true},
		"no user":            {content: state + "Pid:\t1\n", fails: true},
		"too few users":      {content: state + "Pid:\t1\nUid:\t1\n", fails: true},
		"too many users":     {content: state + "Pid:\t1\nUid:\t1\t1\t1\t1\t1\n", fails: true},
		"users by name":      {content: state + "Pid:\t1\nUid:\ta\tb\tc\td\n", fails: true},
		"a negative pid":     {content: state + "Pid:\t-1\nUid:\t1\t1\t1\t1\n", fails: true},
		"a path as a pid":    {content: state + "Pid:\t1\nUid:\t1\t1\t1\t1\nNSpid:\t1 ../../x\n", fails: true},
		"an empty NSpid":     {content: state + "Pid:\t1\nUid:\t1\t1\t1\t1\nNSpid:\n", fails: true},
		"no number":          {content: state + "Pid:\t1\nUid:\t1\t1\t1\t1\nvoluntary_ctxt_switches:\tmany\n", fails: true},
		"no hexadecimal":     {content: state + "Pid:\t1\nUid:\t1\t1\t1\t1\nCapEff:\tzz\n", fails: true},
		"a name without end": {content: "Name:\tUid:\n", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			have, err := ParseStatus([]byte(c.content))
			if c.fails {
				require.ErrorIs(t, err, ErrMalformed)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, c.want, have)
		})
	}
}

func TestStatusOfThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: it reads /proc/self/status")
	}
	s, err := At("").Status(Self)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), s.PID)
	require.EqualValues(t, os.Geteuid(), s.UIDs[1])
	require.Positive(t, s.Switches)
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("State:\tS\nPid:\t70\nUid:\t1\t2\t3\t4\nNSpid:\t70\t5\t1\n"))
	f.Add([]byte("State:\nvoluntary_ctxt_switches:\t99999999999999999999999\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseStatus(b)
		if err == nil && (s.PID <= 0 || s.State == 0) || err != nil && s != (Status{}) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
