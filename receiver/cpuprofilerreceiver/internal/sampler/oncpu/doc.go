// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package oncpu samples running threads.
package oncpu
