// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package nativeformat reads the buffers that the profiler of the
// OpenTelemetry .NET Automatic Instrumentation passes to its exporter plugin:
// thread samples, allocation samples and the selective sampler's samples.
//
// Records have no length. After a fault the begin of the next record is unknown, so
// the rest of the buffer is not read: it would give wrong samples.
//
// # Records
//
// A record is an opcode and its fields. The buffer does not contain its kind. Each kind has
// its own opcodes.
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
// The field in brackets is in every sample of a buffer or in no sample. The buffer does not
// contain which case applies. See [Format].
//
// # Fields
//
// Integers are big-endian. A string is an i16 count of UTF-16 code units, 0 to 512, then
// the units, which are little-endian. Surrogates may be unpaired. Each unpaired surrogate
// becomes U+FFFD. An id of zeros means that there is no id. The bytes of an id are in the
// order of its hexadecimal form.
//
// Frames begin with the leaf, each an i16 code:
//
//	0      end of frames
//	-c     a string follows: it defines c, or defines it anew
//	c      the string that c was defined as
//
// A code is valid from its definition on. It ends with the buffer in thread samples, with
// the sample in allocation samples, and at the next start batch in selected samples. The
// writer defines the codes 1 to 9,999 once, and then defines 10,000 anew for each string.
//
// # Sizes
//
// Before each field the writer checks whether the buffer has 200 KiB, and stops if it has.
// A buffer of thread samples may therefore end inside a sample. The exporter copies at most
// 200 KiB, so the end may also be inside a field. Allocation samples and selected batches
// are complete or missing.
//
// # Source
//
// The layout was taken from buffers recorded from release 1.16 of the instrumentation, some
// of which are in testdata. It was checked against its writer,
// src/OpenTelemetry.AutoInstrumentation.Native/continuous_profiler.cpp.
package nativeformat
