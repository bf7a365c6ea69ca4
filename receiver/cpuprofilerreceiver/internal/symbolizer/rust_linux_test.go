// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"debug/elf"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

func TestRustNamesAreReadable(t *testing.T) {
	for mangling, want := range map[string]string{
		"legacy": "<native::shop::Basket<T> as native::shop::Total>::total",
		"v0":     "<native::shop::Basket<u8> as native::shop::Total>::total",
	} {
		t.Run(mangling, func(t *testing.T) {
			path := build(t, []string{"RUSTC_BOOTSTRAP=1"}, "rustc", "-O", "--crate-name", "native", "-Zunstable-options", "-Csymbol-mangling-version="+mangling, "-o", "OUT", "testdata/native.rs")
			p := start(t, path)
			require.Equal(t, "ready", p.line(t))
			m := mappingOf(t, mappings(t, p.pid), path)
			f, err := elf.Open(path)
			require.NoError(t, err)
			defer f.Close()
			symbols, err := f.Symbols()
			require.NoError(t, err)
			for _, symbol := range symbols {
				if elf.ST_TYPE(symbol.Info) != elf.STT_FUNC || !strings.Contains(symbol.Name, "shop") || !strings.Contains(symbol.Name, "5total") {
					continue
				}
				l := leaf(m, addressOf(t, path, m, symbol.Name))
				newSymbolizer(t, Config{}).Resolve(0, l)
				require.Equal(t, []samples.Line{{Function: want, SystemName: symbol.Name}}, l.Lines)
				return
			}
			t.Fatal("the function is not in the symbol table")
		})
	}
}
