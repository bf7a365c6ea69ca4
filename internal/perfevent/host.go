// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"

// OnlineCPUs lists the CPUs that are online, in ascending order.
func OnlineCPUs() ([]int, error) { return sys.OnlineCPUs() }
