// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/dotnettest"
)

// intakeOf returns a configuration change that adds a dotnet block. The server listens on
// a free port or on a Unix socket of the test.
func intakeOf(t testing.TB, transport string, change func(*dotnet.Config)) func(*Config) {
	d := dotnet.DefaultConfig()
	d.ServerConfig.NetAddr.Endpoint = "127.0.0.1:0"
	if transport == "unix" {
		dir, err := os.MkdirTemp("", "hp")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		d.ServerConfig.NetAddr.Transport, d.ServerConfig.NetAddr.Endpoint = "unix", filepath.Join(dir, "s")
	}
	if change != nil {
		change(&d)
	}
	return func(cfg *Config) {
		cfg.CPU.Enabled = false
		cfg.Dotnet = configoptional.Some(d)
	}
}

// address returns the address of the receiver's .NET profile server.
func (r *running) address() net.Addr { return partOf[*dotnet.Server](r.component).Addr() }

// client returns a client of the receiver. If secure is nil, the client does not use TLS.
func (r *running) client(secure *tls.Config) *http.Client { return clientTo(r.t, r.address(), secure) }

func clientTo(t testing.TB, at net.Addr, secure *tls.Config) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, at.Network(), at.String())
		},
		TLSClientConfig: secure, ForceAttemptHTTP2: true, DisableCompression: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// said is the decoded answer to a request.
type said struct {
	code   int
	header http.Header
	body   map[string]any
	proto  int
}

func postTo(t testing.TB, c *http.Client, url string, body io.Reader, header ...string) said {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("Otel-Resource-Attributes", "service.name=checkout")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	out := said{code: resp.StatusCode, header: resp.Header, proto: resp.ProtoMajor}
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &out.body), "%s", text)
	if out.code != http.StatusAccepted {
		require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"), "%s", text)
	}
	return out
}

// compressed returns the body in the given content encoding.
func compressed(t testing.TB, encoding string, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	switch encoding {
	case "gzip":
		w := gzip.NewWriter(&out)
		_, err := w.Write(body)
		require.NoError(t, err)
		require.NoError(t, w.Close())
	default:
		return body
	}
	return out.Bytes()
}

// sentSample formats a .NET sample as a string, so that sent samples can be compared with
// exported samples.
func sentSample(kind, service, thread, trace, span, typ string, selected bool, at, value int64, functions []string) string {
	return fmt.Sprint(kind, " service=", service, " thread=", thread, " trace=", trace, " span=", span, " type=", typ,
		" selected=", selected, " at=", at, " value=", value, " ", strings.Join(functions, "<"))
}

func wanted(c *dotnettest.Capture) (out []string) {
	for _, s := range c.Samples {
		if s.Thread == nativeformat.ExportThreadName || len(s.Frames) == 0 {
			continue
		}
		var functions []string
		for _, f := range s.Frames {
			functions = append(functions, c.Functions[f])
		}
		if s.SpanID == "" {
			s.TraceID = ""
		}
		add := func(kind string, selected bool, value int64) {
			out = append(out, sentSample(kind, "checkout", s.Thread, s.TraceID, s.SpanID, s.Type, selected, s.UnixMilli*1e6, value, functions))
		}
		switch c.Format.Kind {
		case nativeformat.ThreadSamples:
			if s.Selected { // replaces a selective sample, because selective samples were sent before
				add("wall/nanoseconds wall/nanoseconds 50000000", true, 50_000_000)
			} else {
				add("wall/nanoseconds wall/nanoseconds 500000000", false, 500_000_000)
			}
		case nativeformat.SelectedThreadSamples:
			add("wall/nanoseconds wall/nanoseconds 50000000", true, 50_000_000)
		case nativeformat.AllocationSamples:
			add("alloc_objects/count space/bytes 1 unscaled", false, 1)
			add("alloc_space/bytes space/bytes 1 unscaled", false, s.Bytes)
		}
	}
	return out
}

func arrived(all []pprofile.Profiles) (out []string) {
	for _, ps := range all {
		d := ps.Dictionary()
		text := func(i int32) string { return d.StringTable().At(int(i)) }
		for _, rp := range ps.ResourceProfiles().All() {
			service, _ := rp.Resource().Attributes().Get("service.name")
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					kind := fmt.Sprint(text(p.SampleType().TypeStrindex()), "/", text(p.SampleType().UnitStrindex()), " ",
						text(p.PeriodType().TypeStrindex()), "/", text(p.PeriodType().UnitStrindex()), " ", p.Period())
					for _, a := range p.AttributeIndices().All() {
						kind += " " + strings.TrimPrefix(text(d.AttributeTable().At(int(a)).KeyStrindex()), "hotprofile.")
					}
					for _, s := range p.Samples().All() {
						var thread, typ string
						selected := false
						for _, i := range s.AttributeIndices().All() {
							a := d.AttributeTable().At(int(i))
							switch text(a.KeyStrindex()) {
							case "thread.name":
								thread = a.Value().Str()
							case "hotprofile.alloc.type":
								typ = a.Value().Str()
							case "hotprofile.dotnet.selected":
								selected = a.Value().Str() == "true"
							}
						}
						link := d.LinkTable().At(int(s.LinkIndex()))
						var functions []string
						for _, i := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
							f := d.FunctionTable().At(int(d.LocationTable().At(int(i)).Lines().At(0).FunctionIndex()))
							name := text(f.SystemNameStrindex())
							if name == "" {
								name = text(f.NameStrindex())
							}
							functions = append(functions, name)
						}
						value := int64(0)
						if s.Values().Len() > 0 {
							value = s.Values().At(0)
						}
						for _, at := range s.TimestampsUnixNano().All() {
							out = append(out, sentSample(kind, service.Str(), thread, link.TraceID().String(), link.SpanID().String(), typ, selected, int64(at), value, functions))
						}
					}
				}
			}
		}
	}
	return out
}

// outcomes returns the number of samples by sampler and outcome.
func (r *running) outcomes() map[string]int64 {
	out := map[string]int64{}
	m, err := r.telemetry.GetMetric("otelcol_cpu_profiler.samples")
	if err != nil {
		return out
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		sampler, _ := p.Attributes.Value(attribute.Key("sampler"))
		o, _ := p.Attributes.Value(attribute.Key("outcome"))
		out[sampler.AsString()+" "+o.AsString()] += p.Value
	}
	return out
}

func TestDotnetCapturesAreEmittedUnchanged(t *testing.T) {
	all := dotnettest.Read(t, "*/*")
	for _, transport := range []string{"tcp", "unix"} {
		for _, encoding := range []string{"", "gzip"} {
			t.Run(transport+" "+encoding, func(t *testing.T) {
				r := start(t, intakeOf(t, transport, nil))
				c := r.client(nil)
				var want []string
				read := map[string]int64{} // the number of samples in the buffers
				sampler := map[nativeformat.Kind]string{
					nativeformat.ThreadSamples: "dotnet_threads", nativeformat.AllocationSamples: "dotnet_allocations", nativeformat.SelectedThreadSamples: "dotnet_selected",
				}
				for _, cap := range all {
					header := []string{}
					if encoding != "" {
						header = []string{"Content-Encoding", encoding}
					}
					got := postTo(t, c, "http://localhost"+cap.Path(), bytes.NewReader(compressed(t, encoding, cap.Bytes)), header...)
					require.Equal(t, http.StatusAccepted, got.code, "%s: %v", cap.Name, got.body)
					require.Equal(t, cap.Truncated, got.body["incomplete"] == 1.0)
					want = append(want, wanted(&cap)...)
					n := int64(len(cap.Samples))
					if cap.Truncated {
						n++
					}
					if cap.Format.Kind == nativeformat.AllocationSamples {
						n *= 2
					}
					read[sampler[cap.Format.Kind]] += n
				}
				r.stop()
				got := arrived(r.sink.AllProfiles())
				slices.Sort(want)
				slices.Sort(got)
				require.Equal(t, len(want), len(got))
				for i := range want {
					require.Equal(t, want[i], got[i])
				}
				for i, p := range r.sink.AllProfiles() {
					for _, v := range conformancetest.Check(p, conformancetest.Options{Triggered: true}) {
						t.Errorf("request %d: %v", i, v)
					}
				}
				counted := map[string]int64{}
				for k, n := range r.outcomes() {
					s, _, _ := strings.Cut(k, " ")
					counted[s] += n
				}
				require.Equal(t, read, counted, "each sample that was read has one outcome: %v", r.outcomes())
			})
		}
	}
}

func resourceOf(t *testing.T, r *running) map[string]any {
	t.Helper()
	require.NotEmpty(t, r.sink.AllProfiles())
	return r.sink.AllProfiles()[0].ResourceProfiles().At(0).Resource().Attributes().AsRaw()
}

const otherContainer = "4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c"

const dotnetClaims = "service.name=check%20out,telemetry.sdk.language=dotnet,container.id=" + otherContainer +
	",process.pid=1,process.creation.time=2026-01-01T00:00:00Z,process.linux.cgroup=/else,host.name=else,host.id=else"

func TestDotnetPeerOfASocketIsTheProcessThatTheKernelNames(t *testing.T) {
	r := start(t, intakeOf(t, "unix", nil))
	c := dotnettest.Read(t, "web/000*")[0]
	require.Equal(t, http.StatusAccepted, postTo(t, r.client(nil), "http://localhost"+c.Path(), bytes.NewReader(c.Bytes), "Otel-Resource-Attributes", dotnetClaims).code)
	r.stop()
	got := resourceOf(t, r)
	require.Equal(t, "check out", got["service.name"])
	require.Equal(t, "dotnet", got["telemetry.sdk.language"])
	require.EqualValues(t, os.Getpid(), got["process.pid"])
	require.Equal(t, hostid.Best(hostid.Names("/")), got["host.name"])
	created, err := time.Parse(time.RFC3339, got["process.creation.time"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), created, 24*time.Hour)
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	paths, err := tree.PathsOf(os.Getpid())
	require.NoError(t, err)
	unit := tree.GroupOf(paths)
	claimed, _ := got["process.linux.cgroup"].(string)
	require.Equal(t, unit.Cgroup, claimed)
	container, _ := got["container.id"].(string)
	require.Equal(t, unit.ContainerID, container)
}

func TestDotnetClaimsOverTCPAreRemoved(t *testing.T) {
	r := start(t, intakeOf(t, "tcp", nil))
	c := dotnettest.Read(t, "web/000*")[0]
	require.Equal(t, http.StatusAccepted, postTo(t, r.client(nil), "http://localhost"+c.Path(), bytes.NewReader(c.Bytes), "Otel-Resource-Attributes", dotnetClaims).code)
	r.stop()
	require.Equal(t, map[string]any{"service.name": "check out", "telemetry.sdk.language": "dotnet", "container.id": otherContainer}, resourceOf(t, r))
}

func TestDotnetAnswersBadBodies(t *testing.T) {
	r := start(t, intakeOf(t, "tcp", nil))
	client := r.client(nil)
	c := dotnettest.Read(t, "web/000*")[0]
	zeros := make([]byte, 1<<20+1)
	for name, tc := range map[string]struct {
		encoding string
		body     []byte
		code     int
		detail   string
	}{
		"too large":                     {"", zeros[:1<<20+1], 413, "1048576"},
		"as large as can be":            {"", zeros[:1<<20], 400, "opcode"},
		"gzip of too much":              {"gzip", compressed(t, "gzip", zeros[:1<<20+1]), 413, "1048576"},
		"gzip of as much as can be":     {"gzip", compressed(t, "gzip", zeros[:1<<20]), 400, "opcode"},
		"no gzip":                       {"gzip", c.Bytes, 400, "gzip"},
		"gzip that breaks off":          {"gzip", compressed(t, "gzip", c.Bytes)[:200], 400, "EOF"},
		"gzip with another's sum":       {"gzip", append(slices.Clone(compressed(t, "gzip", c.Bytes)[:len(compressed(t, "gzip", c.Bytes))-8]), 1, 2, 3, 4, 5, 6, 7, 8), 400, "checksum"},
		"an encoding that there is not": {"br", c.Bytes, 400, "br"},
		"one that was not requested":    {"zstd", c.Bytes, 400, "zstd"},
		"nothing in gzip":               {"gzip", compressed(t, "gzip", nil), 202, ""},
	} {
		t.Run(name, func(t *testing.T) {
			header := []string{}
			if tc.encoding != "" {
				header = []string{"Content-Encoding", tc.encoding}
			}
			// Keep-alive is off, because the connection may be closed if
			// a body is not read completely.
			got := postTo(t, client, "http://localhost"+c.Path(), bytes.NewReader(tc.body), append(header, "Connection", "close")...)
			require.Equal(t, tc.code, got.code, got.body)
			if tc.detail != "" {
				require.Contains(t, got.body["detail"], tc.detail)
			}
		})
	}
}

// keyAndCertificate creates a key and a certificate for the host name localhost. It
// returns the paths of their files and a pool that trusts the certificate.
func keyAndCertificate(t *testing.T) (keyFile, certFile string, trusted *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	keyFile, certFile = filepath.Join(dir, "key"), filepath.Join(dir, "cert")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	trusted = x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(certificate))
	return keyFile, certFile, trusted
}

func TestDotnetOverTLS(t *testing.T) {
	keyFile, certFile, trusted := keyAndCertificate(t)
	c := dotnettest.Read(t, "web/000*")[0]
	for _, transport := range []string{"tcp", "unix"} {
		t.Run(transport, func(t *testing.T) {
			r := start(t, intakeOf(t, transport, func(d *dotnet.Config) {
				secure := configtls.NewDefaultServerConfig()
				secure.KeyFile, secure.CertFile = keyFile, certFile
				d.ServerConfig.TLS = configoptional.Some(secure)
			}))
			got := postTo(t, r.client(&tls.Config{RootCAs: trusted}), "https://localhost"+c.Path(), bytes.NewReader(c.Bytes))
			require.Equal(t, http.StatusAccepted, got.code, got.body)
			require.Equal(t, 2, got.proto)
			r.stop()
			_, named := resourceOf(t, r)["process.pid"]
			require.Equal(t, transport == "unix", named)
		})
	}
}

// password is an authenticator that accepts one bearer token.
type password struct {
	component.StartFunc
	component.ShutdownFunc
}

func (password) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	if got := http.Header(headers).Get("Authorization"); got != "Bearer sesame" {
		return ctx, errors.New("who are you")
	}
	return ctx, nil
}

type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }

func TestDotnetAuthenticationIsThatOfTheServer(t *testing.T) {
	id := component.MustNewID("password")
	cfg := createDefaultConfig()
	intakeOf(t, "tcp", func(d *dotnet.Config) {
		d.ServerConfig.Auth = configoptional.Some(confighttp.AuthConfig{Config: configauth.Config{AuthenticatorID: id}})
	})(cfg)
	p, err := NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg, consumerOf(func(context.Context, pprofile.Profiles) error { return nil }))
	require.NoError(t, err)
	require.ErrorContains(t, p.Start(context.Background(), componenttest.NewNopHost()), "password")
	require.NoError(t, p.Shutdown(context.Background()))

	p, err = NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg, consumerOf(func(context.Context, pprofile.Profiles) error { return nil }))
	require.NoError(t, err)
	require.NoError(t, p.Start(context.Background(), hostWith{id: password{}}))
	c := dotnettest.Read(t, "web/000*")[0]
	client := clientTo(t, partOf[*dotnet.Server](p).Addr(), nil)
	got := postTo(t, client, "http://localhost"+c.Path(), bytes.NewReader(c.Bytes))
	require.Equal(t, http.StatusUnauthorized, got.code)
	require.Equal(t, "who are you", got.body["detail"])
	require.Equal(t, http.StatusAccepted, postTo(t, client, "http://localhost"+c.Path(), bytes.NewReader(c.Bytes), "Authorization", "Bearer sesame").code)
	require.NoError(t, p.Shutdown(context.Background()))
}

// TestDotnetStalledSendersTimeOut checks that the receiver closes the connection of a
// client that stalls. A stalled client must not delay other clients.
func TestDotnetStalledSendersTimeOut(t *testing.T) {
	c := dotnettest.Read(t, "web/000*")[0]
	var checks []func() // all connections stall at the same time
	for _, transport := range []string{"tcp", "unix"} {
		r := start(t, intakeOf(t, transport, func(d *dotnet.Config) {
			// The timeouts are long enough that clients which do not stall succeed even on a
			// busy machine.
			d.ServerConfig.ReadHeaderTimeout, d.ServerConfig.ReadTimeout = 3*time.Second, 3*time.Second
		}))
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n", c.Path(), len(c.Bytes))
		for name, tc := range map[string]struct {
			sent string
			code int // 0 means that the connection is closed, with or without an answer
		}{
			"nothing":             {"", 0},
			"half a head":         {head[:30], 0},
			"a head":              {head + "\r\n", 408},
			"half a body":         {head + "\r\n" + string(c.Bytes[:100]), 408},
			"half a gzipped body": {head + "Content-Encoding: gzip\r\n\r\n" + string(compressed(t, "gzip", c.Bytes)[:100]), 408},
		} {
			conn, err := net.Dial(r.address().Network(), r.address().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, tc.sent)
			require.NoError(t, err)
			checks = append(checks, func() {
				t.Run(transport+"/"+name, func(t *testing.T) {
					require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
					resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
					if tc.code == 0 && err != nil {
						require.ErrorIs(t, err, io.ErrUnexpectedEOF)
						return
					}
					require.NoError(t, err)
					if tc.code != 0 {
						require.Equal(t, tc.code, resp.StatusCode)
					}
					require.True(t, resp.Close)
					require.NoError(t, resp.Body.Close())
				})
			})
		}
		require.Equal(t, http.StatusAccepted, postTo(t, r.client(nil), "http://localhost"+c.Path(), bytes.NewReader(c.Bytes)).code, "others are served meanwhile")
	}
	for _, check := range checks {
		check()
	}
}

func TestDotnetManyStalledSendersBlockNoOthers(t *testing.T) {
	r := start(t, intakeOf(t, "unix", nil))
	c := dotnettest.Read(t, "web/000*")[0]
	for range 500 {
		conn, err := net.Dial("unix", r.address().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n%s", c.Path(), c.Bytes)
		require.NoError(t, err)
	}
	require.Equal(t, http.StatusAccepted, postTo(t, r.client(nil), "http://localhost"+c.Path(), bytes.NewReader(c.Bytes)).code)
}

func TestDotnetShutdownDisconnectsStalledSenders(t *testing.T) {
	r := start(t, intakeOf(t, "unix", nil))
	path := r.address().String()
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/dotnet/allocation-samples HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\nx")
	require.NoError(t, err)
	c := dotnettest.Read(t, "web/000*")[0]
	require.Equal(t, http.StatusAccepted, postTo(t, r.client(nil), "http://localhost"+c.Path(), bytes.NewReader(c.Bytes)).code)
	r.stop() // goleak fails the test if goroutines are left
	require.NoFileExists(t, path)
	require.Len(t, arrived(r.sink.AllProfiles()), len(wanted(&c)), "what was accepted is emitted")
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, _ = io.ReadAll(conn)
}

// TestDotnetSlowConsumerMakes503AndNoneIsLostUncounted checks that a response does not
// wait for the next component. When both buffers are full, the status must be 503 and the
// samples must be counted as lost.
func TestDotnetSlowConsumerMakes503AndNoneIsLostUncounted(t *testing.T) {
	called, release := make(chan struct{}, 1), make(chan struct{})
	var mu sync.Mutex
	out := 0
	next := consumerOf(func(_ context.Context, p pprofile.Profiles) error {
		select {
		case called <- struct{}{}:
		default:
		}
		<-release // the consumer ignores its context
		mu.Lock()
		defer mu.Unlock()
		out += len(arrived([]pprofile.Profiles{p}))
		return nil
	})
	r := startWithin(t, 50*time.Millisecond, next, func(cfg *Config) {
		intakeOf(t, "tcp", nil)(cfg)
		cfg.BufferSize, cfg.ExportInterval = 64*bytesize.KiB, 1500*time.Millisecond
	})
	c := dotnettest.Read(t, "web/002*")[0]
	client := r.client(nil)
	kept, lost := 0, 0
	n := func(v any) int { f, _ := v.(float64); return int(f) }
	accepted := 0
	for full := 0; full < 3; {
		got := postTo(t, client, "http://localhost"+c.Path(), bytes.NewReader(c.Bytes))
		kept += n(got.body["samples"])
		lost += n(got.body["no_room"])
		if got.code == http.StatusServiceUnavailable {
			full++
			require.Equal(t, "2", got.header.Get("Retry-After"))
			continue
		}
		require.Equal(t, http.StatusAccepted, got.code)
		if accepted == 0 {
			<-called // from here on, the consumer keeps one buffer
		}
		accepted++
		require.Less(t, accepted, 100_000)
	}
	require.Positive(t, accepted)
	require.Equal(t, 1, r.logs.FilterMessageSnippet("Skipping a thread sample period, buffers are full.").Len())
	require.Eventually(t, func() bool { return r.outcomes()["dotnet_threads buffer_full"] == int64(lost) }, patience, 10*time.Millisecond, "seen while the call lasts")

	close(release)
	require.Eventually(t, func() bool {
		got := postTo(t, client, "http://localhost"+c.Path(), bytes.NewReader(c.Bytes))
		kept += n(got.body["samples"])
		lost += n(got.body["no_room"])
		return got.code == http.StatusAccepted
	}, patience, 10*time.Millisecond)
	r.stop()
	mu.Lock()
	defer mu.Unlock()
	o := r.outcomes()
	require.EqualValues(t, kept, o["dotnet_threads exported"]+o["dotnet_threads refused"]+o["dotnet_threads shutdown"])
	require.EqualValues(t, out, o["dotnet_threads exported"])
	require.EqualValues(t, lost, o["dotnet_threads buffer_full"])
}

func TestDotnetSocketModeDecidesWhoMayConnect(t *testing.T) {
	for _, mode := range []dotnet.SocketMode{0o660, 0o600, 0o666} {
		r := start(t, intakeOf(t, "unix", func(d *dotnet.Config) { d.SocketMode = mode }))
		info, err := os.Stat(r.address().String())
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(mode), info.Mode().Perm())
		r.stop()
	}
}

func TestDotnetSocketOfAnEarlierRunIsReplaced(t *testing.T) {
	configure := intakeOf(t, "unix", nil)
	cfg := createDefaultConfig()
	configure(cfg)
	path := cfg.Dotnet.Get().ServerConfig.NetAddr.Endpoint
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	start(t, configure).stop()

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	p, err := NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg, consumerOf(func(context.Context, pprofile.Profiles) error { return nil }))
	require.NoError(t, err)
	require.ErrorContains(t, p.Start(context.Background(), componenttest.NewNopHost()), "is not a socket")
	require.NoError(t, p.Shutdown(context.Background()))
}

func TestDotnetPortInUseIsAnErrorAtStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	cfg := createDefaultConfig()
	intakeOf(t, "tcp", func(d *dotnet.Config) { d.ServerConfig.NetAddr.Endpoint = l.Addr().String() })(cfg)
	p, err := NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg, consumerOf(func(context.Context, pprofile.Profiles) error { return nil }))
	require.NoError(t, err)
	require.ErrorContains(t, p.Start(context.Background(), componenttest.NewNopHost()), "dotnet.endpoint")
	require.NoError(t, p.Shutdown(context.Background()))
}

func TestDotnetAloneSamplesNoThreadsAndLogsThat(t *testing.T) {
	r := start(t, intakeOf(t, "tcp", nil))
	require.Equal(t, 1, r.logs.FilterMessageSnippet("running threads are not sampled: cpu.enabled is false").Len())
	require.Equal(t, 1, r.logs.FilterMessage(".NET profile server listening").Len())
	require.Zero(t, r.logs.FilterMessage("sampling started").Len())
}

func TestDotnetBesideSampledThreads(t *testing.T) {
	r := start(t, func(cfg *Config) {
		intakeOf(t, "tcp", nil)(cfg)
		cfg.CPU.Enabled = true
		cfg.Targets = []TargetConfig{{PID: os.Getpid()}}
	})
	c := dotnettest.Read(t, "web/000*")[0]
	require.Equal(t, http.StatusAccepted, postTo(t, r.client(nil), "http://localhost"+c.Path(), bytes.NewReader(c.Bytes)).code)
	r.until("samples of this process, which posts and spins", func(rows []row) bool {
		for range 1_000_000 {
			_ = fmt.Sprint
		}
		return slices.ContainsFunc(rows, func(r row) bool { return r.resource["service.name"] == "checkout" })
	})
	r.stop()
	for i, p := range r.sink.AllProfiles() {
		for _, v := range conformancetest.Check(p, conformancetest.Options{SampleAttributes: []string{"thread.id"}}) {
			t.Errorf("request %d: %v", i, v)
		}
	}
	require.EqualValues(t, len(wanted(&c)), r.outcomes()["dotnet_threads exported"])
}
