// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package nativeformat reads the buffers that the profiler of the OpenTelemetry .NET
// Automatic Instrumentation passes to its exporter plugin. A buffer contains thread samples,
// allocation samples or the selective sampler's samples.
//
// Records contain no length, so the start of the next record is unknown after a fault. The
// decoder then ignores the rest of the buffer, because it could only return wrong samples.
//
// # Records
//
// A record is an opcode and its fields. Each kind of buffer has its own opcodes. The buffer
// does not contain its kind.
//
//	kind          opcode  record            fields
//	threads       0x01    start batch       i32 version, 1
//	                                        i64 capture start, ms since the Unix epoch
//	              0x02    sample            string thread name
//	                                        i64 trace id high, i64 trace id low, i64 span id
//	                                        [u8 selected for frequent sampling, 0 or 1]
//	                                        frames
//	              0x06    end batch
//	              0x07    batch statistics  i32 microseconds suspended, i32 threads,
//	                                        i32 frames, i32 name cache misses
//	allocations   0x08    sample            i64 ms since the Unix epoch
//	                                        u64 bytes of the sampled object
//	                                        string type name, string thread name
//	                                        i64 trace id high, i64 trace id low, i64 span id
//	                                        frames
//	selected      0x0A    start batch
//	              0x09    sample            i64 ms since the Unix epoch
//	                                        string thread name
//	                                        i64 trace id high, i64 trace id low, i64 span id
//	                                        frames
//	              0x0B    end batch
//
// The field in brackets is in every sample of a buffer or in none. The buffer does not
// indicate which. See [Format].
//
// # Fields
//
// Integers are big-endian. A string is an i16 count of UTF-16 code units, 0 to 512,
// followed by the units, which are little-endian. Surrogates may be unpaired. Each unpaired
// surrogate becomes U+FFFD. An id of zeros means that there is no id. The bytes of an id
// are in the order of its hexadecimal form.
//
// A stack is a list of frames, leaf first. Each frame is an i16 code:
//
//	0      end of frames
//	-c     a string follows; it defines or redefines c
//	c      the string that c stands for
//
// A code is valid from its definition on. In thread samples it is valid until the end of
// the buffer, in allocation samples until the end of the sample, and in selected samples
// until the next start batch. The writer defines each of the codes 1 to 9,999 once. It then
// redefines the code 10,000 for each further string.
//
// # Sizes
//
// Before each field, the writer stops if the buffer has reached 200 KiB. A buffer of thread
// samples may therefore end inside a sample. The exporter copies at most 200 KiB, so a
// buffer may also end inside a field. Allocation samples and selected batches are complete
// or missing.
//
// # Source
//
// The layout was derived from buffers recorded with release 1.16 of the instrumentation,
// some of which are in testdata. It was checked against the writer's source,
// src/OpenTelemetry.AutoInstrumentation.Native/continuous_profiler.cpp.
package nativeformat
