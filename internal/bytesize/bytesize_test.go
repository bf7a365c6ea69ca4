// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bytesize_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/bytesize"
)

func TestUnmarshalText(t *testing.T) {
	for in, want := range map[string]bytesize.Size{
		"0": 0, "1": 1, "12B": 12, "256MiB": 256 << 20, "256 mib": 256 << 20,
		"4MiB": 4 << 20, "200KiB": 200 << 10, "1GB": 1e9, "1GiB": 1 << 30,
		" 5 KB ": 5000, "2TiB": 2 << 40, "3MB": 3e6, "1tb": 1e12, "1.5GiB": 3 << 29,
		"9223372036854775807": 1<<63 - 1,
	} {
		t.Run(in, func(t *testing.T) {
			var s bytesize.Size
			require.NoError(t, s.UnmarshalText([]byte(in)))
			require.Equal(t, want, s)
		})
	}
}

func TestInvalidSizesAreErrorsThatNameTheAllowedForms(t *testing.T) {
	for _, in := range []string{
		"", "MiB", "-1MiB", "1 MiB 2", "12 parsecs", "9223372036854775808", "9007199254740992KiB", "1_000", "NaN", "1e3",
	} {
		t.Run(in, func(t *testing.T) {
			s := bytesize.Size(7)
			require.ErrorContains(t, s.UnmarshalText([]byte(in)), "want a number of bytes")
			require.Equal(t, bytesize.Size(7), s)
		})
	}
}

func TestSizesPrintExactly(t *testing.T) {
	for s, want := range map[bytesize.Size]string{
		0: "0B", 1: "1B", 1000: "1000B", 1024: "1KiB", 256 << 20: "256MiB", 1<<30 + 1024: "1048577KiB",
		3 << 30: "3GiB", 2 << 40: "2TiB", -5: "-5B",
	} {
		require.Equal(t, want, s.String())
	}
}

func TestConfigurationHasSizesAsTextOrNumber(t *testing.T) {
	var cfg struct {
		A bytesize.Size `mapstructure:"a"`
		B bytesize.Size `mapstructure:"b"`
	}
	conf := confmap.NewFromStringMap(map[string]any{"a": "4MiB", "b": 4096})
	require.NoError(t, conf.Unmarshal(&cfg))
	require.Equal(t, 4*bytesize.MiB, cfg.A)
	require.Equal(t, 4*bytesize.KiB, cfg.B)

	require.NoError(t, conf.Marshal(cfg))
	require.Equal(t, "4MiB", conf.Get("a"))
}

func FuzzStringAndUnmarshalText(f *testing.F) {
	for _, s := range []string{"1", "256MiB", "5KB", "9223372036854775807B"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		var s, again bytesize.Size
		if s.UnmarshalText([]byte(in)) != nil {
			return
		}
		require.GreaterOrEqual(t, int64(s), int64(0))
		require.NoError(t, again.UnmarshalText([]byte(s.String())))
		require.Equal(t, s, again)
	})
}
