#!/usr/bin/env bash
# Builds the supervisor, and the distribution for nodes with what the supervisor needs:
# the extension opamp, and the components nop of the configuration that it starts with.
# The extension 0.149 names an interface that the core no longer has and never calls, so
# the interface is added to a copy of the core's module.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/bin
go build -C test/opamp -o "$out/opampsupervisor" github.com/open-telemetry/opentelemetry-collector-contrib/cmd/opampsupervisor

rm -rf bin/extensioncapabilities
cp -r --no-preserve=mode "$(go list -C bin/src -m -f '{{.Dir}}' go.opentelemetry.io/collector/extension/extensioncapabilities)" bin/extensioncapabilities
cat >bin/extensioncapabilities/removed.go <<'END'
package extensioncapabilities

import (
	"context"

	"go.opentelemetry.io/collector/confmap"
)

type ConfigWatcher interface {
	NotifyConfig(ctx context.Context, conf *confmap.Conf) error
}
END
core=$(awk '/debugexporter/ {print $NF}' builder-config.yaml)
sed -e 's#bin/src#&-opamp#' \
	-e "/^receivers:/a\\  - gomod: go.opentelemetry.io/collector/receiver/nopreceiver $core" \
	-e "/^exporters:/a\\  - gomod: go.opentelemetry.io/collector/exporter/nopexporter $core" \
	-e '/^extensions:/a\  - gomod: github.com/open-telemetry/opentelemetry-collector-contrib/extension/opampextension v0.149.0' \
	-e '/^replaces:/a\  - go.opentelemetry.io/collector/extension/extensioncapabilities => ../extensioncapabilities' \
	builder-config.yaml >bin/builder-config.opamp.yaml
go tool -modfile=internal/tools/go.mod builder --config bin/builder-config.opamp.yaml --skip-compilation || test -f bin/src-opamp/go.mod
cd bin/src-opamp
go mod tidy -e
go build -o "$out/otelcol-hotprofile-opamp" .
