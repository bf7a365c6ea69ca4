// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStackEndsWhereFramePointersLeadAstray(t *testing.T) {
	const code = 0x401000
	for name, test := range map[string]struct{ user, want []uint64 }{
		"whole":             {[]uint64{code, code + 4}, []uint64{code, code + 4}},
		"zero":              {[]uint64{code, 0, code}, []uint64{code}},
		"text of a string":  {[]uint64{code, code, 0x4c4c454853003700, code}, []uint64{code, code}},
		"a small number":    {[]uint64{code, 7}, []uint64{code}},
		"the vsyscall page": {[]uint64{0xffffffffff600000, code}, []uint64{0xffffffffff600000, code}},
		"no stack":          {nil, nil},
		"a call to nothing": {[]uint64{0, code}, []uint64{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, reached(test.user)) })
	}
}
