// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

// contextAddress is the address of the published context in a test's process.
const contextAddress = 0x1000

// message returns an encoded ProcessContext with the given pairs of keys
// and values. The message also contains an attribute that is not a string,
// and a field besides the resource.
func message(pairs ...string) []byte {
	field := func(b []byte, n protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
	}
	number := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 7)
	resource := field(nil, 1, field(field(nil, 1, []byte("service.version")), 2, number))
	for i := 0; i < len(pairs); i += 2 {
		attribute := field(field(nil, 1, []byte(pairs[i])), 2, field(nil, 1, []byte(pairs[i+1])))
		resource = field(resource, 1, attribute)
	}
	return field(field(nil, 1, resource), 2, []byte{0xff})
}

func header(published uint64, size int, address uint64) []byte {
	b := []byte(contextSignature)
	b = binary.NativeEndian.AppendUint32(b, contextVersion)
	b = binary.NativeEndian.AppendUint32(b, uint32(size))
	b = binary.NativeEndian.AppendUint64(b, published)
	return binary.NativeEndian.AppendUint64(b, address)
}

// publish writes the memory of a process. The memory contains a
// header, followed by a message.
func (h *host) publish(pid int, header, message []byte) {
	h.t.Helper()
	h.write(fmt.Sprintf("proc/%d/mem", pid), strings.Repeat("x", contextAddress)+string(header)+string(message))
}

func (h *host) publishNamed(pid int, published uint64, name string) {
	h.t.Helper()
	m := message("service.name", name)
	h.publish(pid, header(published, len(m), contextAddress+contextHeader), m)
}

const contextMaps = "1000-2000 rw-p 00000000 00:01 7 /memfd:OTEL_CTX (deleted)\n"

// watched is a table with one process whose context is followed.
type watched struct {
	*host
	table *Table
	now   time.Time
}

func watch(t *testing.T, maps string) *watched {
	w := &watched{host: newHost(t, false), now: time.Unix(1_000_000, 0)}
	w.process(100, proc{name: "a", exe: "/a", ticks: 1, environ: environ("OTEL_SERVICE_NAME=environment"), maps: maps})
	w.table = w.host.table(func(c *Config) { c.Now = func() time.Time { return w.now } })
	require.Equal(t, "environment", w.service(100))
	return w
}

// service returns the service name of a sample in the next batch.
func (w *watched) service(pid int) any {
	w.table.NextBatch()
	return attributes(w.t, w.table.Lookup(pid, 0).Resource)["service.name"]
}

func TestContextIsFoundAndFollowed(t *testing.T) {
	w := watch(t, contextMaps)
	w.publishNamed(100, 1, "context")
	require.Equal(t, "environment", w.service(100), "too early to search")
	w.now = w.now.Add(contextDelay)
	require.Equal(t, "context", w.service(100))
	before := w.table.Lookup(100, 0).Resource

	w.publishNamed(100, 1, "not announced")
	require.Equal(t, "context", w.service(100), "only the header is read")
	require.Same(t, before, w.table.Lookup(100, 0).Resource)
	w.publishNamed(100, 0, "unfinished")
	require.Equal(t, "context", w.service(100))
	w.publishNamed(100, 2, "updated")
	require.Equal(t, "updated", w.service(100))

	w.publish(100, nil, nil)
	require.Equal(t, "environment", w.service(100), "the context is gone")
	w.publishNamed(100, 2, "again")
	require.Equal(t, "environment", w.service(100), "too early to search")
	w.now = w.now.Add(contextDelay)
	require.Equal(t, "again", w.service(100))

	w.table.Fork(200, 100, 200, 100)
	require.Equal(t, "environment", w.service(200), "a child does not inherit the context")
	bytes := w.table.Stats().Bytes
	w.table.Exec(100, []byte("a"))
	require.Equal(t, "environment", w.service(100), "another program has not published it")
	w.table.processes.Purge()
	require.Less(t, w.table.Stats().Bytes, bytes)
	w.table.names, w.table.nameBytes = nil, 0
	w.table.memberships.bytes = 0
	require.Zero(t, w.table.Stats().Bytes)
}

func TestContextReplacesOnlyItsAttributes(t *testing.T) {
	w := watch(t, contextMaps)
	w.process(100, proc{name: "a", exe: "/a", ticks: 2, maps: contextMaps, environ: environ("OTEL_SERVICE_NAME=environment",
		"OTEL_RESOURCE_ATTRIBUTES=service.namespace=shop,service.version=1,deployment.environment.name=test")})
	m := message("service.name", "context", "service.instance.id", "i", "deployment.environment.name", "production",
		"service.version", "", "process.pid", "1", "container.id", containerID, "process.linux.cgroup", "/other")
	w.publish(100, header(1, len(m), contextAddress+contextHeader), m)
	before := attributes(t, w.table.Lookup(100, 0).Resource)
	w.service(100)
	w.now = w.now.Add(contextDelay)
	w.service(100)
	want := attributes(t, w.table.Lookup(100, 0).Resource)
	require.Equal(t, "context", want["service.name"])
	require.Equal(t, "shop", want["service.namespace"])
	require.Equal(t, "1", want["service.version"])
	require.Equal(t, "i", want["service.instance.id"])
	require.Equal(t, "production", want["deployment.environment.name"])
	require.Equal(t, before["process.pid"], want["process.pid"])
	require.NotContains(t, want, "container.id")
	require.NotContains(t, want, "process.linux.cgroup")
}

func TestDescribeReadsTheContext(t *testing.T) {
	w := watch(t, contextMaps)
	w.publishNamed(100, 1, "context")
	r, _, err := Describe(Config{Access: mappedfile.Access{Root: w.root}, Tree: w.tree}, 100)
	require.NoError(t, err)
	require.Equal(t, "context", attributes(t, r)["service.name"])
}

func TestForgedContextsAreIgnored(t *testing.T) {
	m := message("service.name", "forged")
	at := uint64(contextAddress + contextHeader)
	good := header(1, len(m), at)
	for name, forged := range map[string][]byte{
		"another signature": append([]byte("OTEL_CTY"), good[8:]...),
		"another version":   append([]byte(contextSignature+"\xff\xff\xff\xff"), good[12:]...),
		"a huge message":    header(1, maxContext+1, at),
		"the largest size":  header(1, -1, at),
		"no memory":         header(1, len(m), 1<<40),
		"a kernel address":  header(1, len(m), 1<<63+at),
		"the header itself": header(1, contextHeader, contextAddress),
		"half a message":    header(1, len(m)/2, at),
		"no message":        header(1, 0, at),
		"never finished":    header(0, len(m), at),
		"half a header":     good[:20],
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t, contextMaps)
			after := m
			if name == "half a header" {
				after = nil
			}
			w.publish(100, forged, after)
			for range 20 {
				w.now = w.now.Add(maxContextWait)
				require.Equal(t, "environment", w.service(100))
				require.LessOrEqual(t, cap(w.table.fs.buf), 2*maxContext)
			}
		})
	}
}

// TestContextsAreSearchedLessAndLessOften checks that searches become less and less
// frequent, because each search reads all mappings of a process.
func TestContextsAreSearchedLessAndLessOften(t *testing.T) {
	w := watch(t, "")
	var found []int // the time of each search in seconds
	for second := 1; second <= 200; second++ {
		w.now = w.now.Add(time.Second)
		searched := w.table.processes.Values()[0].context.next
		w.service(100)
		if w.table.processes.Values()[0].context.next != searched {
			found = append(found, second)
		}
	}
	require.Equal(t, []int{2, 4, 8, 16, 32, 64, 128, 192}, found)
}

func TestContextMappings(t *testing.T) {
	require.Equal(t, []uint64{0x1000, 0x2000, 0x3000, 0x4000}, contextMappings([]byte(
		"0500-1000 rw-p 00000000 00:01 7 /home/OTEL_CTX\n"+contextMaps+
			"2000-3000 rw-p 00000000 00:00 0 [anon:OTEL_CTX]\n"+
			"malformed OTEL_CTX\n"+
			"3000-4000 rw-p 00000000 00:00 0 [anon_shmem:OTEL_CTX]\n"+
			"4000-5000 rw-p 00000000 00:01 7 /memfd:OTEL_CTX\n"+
			"5000-6000 rw-p 00000000 00:01 7 /memfd:OTEL_CTX\n")))
	require.Empty(t, contextMappings([]byte("1000-2000 rw-p 00000000 00:01 7 /memfd:OTHER (deleted)\n")))
}

func TestDefaultNamesOfSDKsDoNotCount(t *testing.T) {
	env, _ := parseContext(message("service.name", "unknown_service:java", "service.version", "1"), nil)
	require.Equal(t, environment{serviceVersion: "1"}, env)
}

func TestContextDescribesThreads(t *testing.T) {
	labels := []string{"http.route", "rpc.method", "tenant"}
	with := func(schema string, keys ...string) []byte {
		field := func(b []byte, n protowire.Number, value []byte) []byte {
			return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
		}
		attribute := field(field(nil, 1, []byte(threadSchemaKey)), 2, field(nil, 1, []byte(schema)))
		var list []byte
		for _, key := range keys {
			list = field(list, 1, field(nil, 1, []byte(key)))
		}
		published := field(field(nil, 1, []byte(threadKeysKey)), 2, field(nil, 5, list))
		return field(field(message("service.name", "shop"), 2, attribute), 2, published)
	}
	env, threads := parseContext(with(threadSchema), labels)
	require.Equal(t, "shop", env.serviceName)
	require.Equal(t, &ThreadContext{Keys: []int{-1, -1, -1}}, threads)
	_, threads = parseContext(with(threadSchema, "datadog.local_root_span_id", "", "tenant", "http.route"), labels)
	require.Equal(t, &ThreadContext{Keys: []int{3, -1, 2}}, threads)
	_, threads = parseContext(with("tlsdesc_v9", "http.route"), labels)
	require.Nil(t, threads)
	_, threads = parseContext(message(threadSchemaKey, threadSchema), labels)
	require.Nil(t, threads, "an attribute of the resource does not describe threads")
}

func FuzzParseContext(f *testing.F) {
	f.Add(message("service.name", "shop", "service.version", "1"))
	f.Add(message("service.name", "\xff"+strings.Repeat("x", 2*maxValue)))
	f.Add([]byte{0x0b, 0x0b, 0x0c, 0x0c})
	f.Fuzz(func(t *testing.T, b []byte) {
		env, threads := parseContext(b, []string{"http.route"})
		require.True(t, threads == nil || len(threads.Keys) == 1)
		for _, value := range env.fields() {
			if len(*value) > 3*maxValue || !utf8.ValidString(*value) {
				t.Errorf("%q", *value)
			}
		}
	})
}
