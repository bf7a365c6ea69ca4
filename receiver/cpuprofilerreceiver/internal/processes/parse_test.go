// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestParseEnviron(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    environment
	}{
		"nothing of interest": {content: environ("PATH=/bin", "HOME=/")},
		"empty":               {},
		"the service's name":  {content: environ("A=1", "OTEL_SERVICE_NAME=checkout"), want: environment{serviceName: "checkout"}},
		"the name wins over the attribute": {
			content: environ("OTEL_RESOURCE_ATTRIBUTES=service.name=other,service.version=1.2", "OTEL_SERVICE_NAME=checkout"),
			want:    environment{serviceName: "checkout", serviceVersion: "1.2"},
		},
		"an empty name is no name": {
			content: environ("OTEL_SERVICE_NAME=", "OTEL_RESOURCE_ATTRIBUTES=service.name=other"),
			want:    environment{serviceName: "other"},
		},
		"the first of two counts": {
			content: environ("OTEL_SERVICE_NAME=a", "OTEL_SERVICE_NAME=b"),
			want:    environment{serviceName: "a"},
		},
		"all attributes": {
			content: environ("OTEL_RESOURCE_ATTRIBUTES=service.namespace=shop, service.name = a%20b ,service.instance.id=i%2C1,deployment.environment.name=prod,other=x"),
			want:    environment{serviceName: "a b", serviceNamespace: "shop", serviceInstance: "i,1", deployment: "prod"},
		},
		"pairs without an equals sign are left out": {
			content: environ("OTEL_RESOURCE_ATTRIBUTES=service.name,,=,service.version=2=3"),
			want:    environment{serviceVersion: "2=3"},
		},
		"bad percent-encoding is taken as it is": {
			content: environ("OTEL_RESOURCE_ATTRIBUTES=service.name=100%,service.version=%zz"),
			want:    environment{serviceName: "100%", serviceVersion: "%zz"},
		},
		"bytes that are no text":      {content: environ("OTEL_SERVICE_NAME=a\xffb", "OTEL_RESOURCE_ATTRIBUTES=service.version=%ff"), want: environment{serviceName: "a\uFFFDb", serviceVersion: "\uFFFD"}},
		"no zero byte at the end":     {content: "OTEL_SERVICE_NAME=checkout", want: environment{serviceName: "checkout"}},
		"a name within another":       {content: environ("MY_OTEL_SERVICE_NAME=x")},
		"a name that is far too long": {content: environ("OTEL_SERVICE_NAME=" + strings.Repeat("x", 5000)), want: environment{serviceName: strings.Repeat("x", maxValue)}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, parseEnviron([]byte(c.content)))
		})
	}
}

func TestSystemdService(t *testing.T) {
	for at, want := range map[string]string{
		"/system.slice/checkout.service":                                        "checkout",
		"/system.slice/checkout.service/workers":                                "checkout",
		"/system.slice/system-getty.slice/getty@tty1.service":                   "getty@tty1",
		`/system.slice/my\x2dshop.service`:                                      "my-shop",
		`/system.slice/odd\xzz.service`:                                         `odd\xzz`,
		"/user.slice/user-1000.slice/session-3.scope":                           "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope":   "",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/app-y.service": "app-y",
		"/user.slice/user-1000.slice/user@1000.service/init.scope":              "",
		"/init.scope": "",
		"/":           "",
		"":            "",
		"/.service":   "",
		"/build/jobs": "",
	} {
		t.Run(at, func(t *testing.T) {
			require.Equal(t, want, systemdService(at))
		})
	}
}

func TestTextIsCutBetweenCharacters(t *testing.T) {
	for limit := range 12 {
		got := text([]byte("aäö€𝄞"), limit)
		require.True(t, utf8.ValidString(got))
		require.LessOrEqual(t, len(got), limit)
		require.NotContains(t, got, "\uFFFD")
		require.True(t, strings.HasPrefix("aäö€𝄞", got))
	}
}

func FuzzParseEnviron(f *testing.F) {
	f.Add([]byte("A=1\x00OTEL_SERVICE_NAME=a\x00OTEL_RESOURCE_ATTRIBUTES=service.name=b%20c\x00"))
	f.Fuzz(func(t *testing.T, b []byte) { checkEnvironment(t, parseEnviron(b)) })
}

func FuzzParseResourceAttributes(f *testing.F) {
	f.Add("service.name=b%20c,service.version=%,x")
	f.Fuzz(func(t *testing.T, s string) { checkEnvironment(t, parseResourceAttributes(s)) })
}

func checkEnvironment(t *testing.T, e environment) {
	for _, v := range []string{e.serviceName, e.serviceNamespace, e.serviceVersion, e.serviceInstance, e.deployment} {
		if !utf8.ValidString(v) || len(v) > 3*maxValue {
			t.Errorf("value %q", v)
		}
	}
}

func FuzzSystemdService(f *testing.F) {
	f.Add(`/system.slice/my\x2dshop.service`)
	f.Fuzz(func(t *testing.T, at string) {
		if s := systemdService(at); !utf8.ValidString(s) {
			t.Errorf("%q", s)
		}
	})
}
