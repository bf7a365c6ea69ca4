// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command sbom writes the bill of materials of a Go program as SPDX 2.3 in JSON:
// the modules that the linker noted in the binary itself, with package URLs.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"
)

func main() {
	version := flag.String("version", "", "version of the program")
	epoch := flag.Int64("epoch", 0, "when it was made, in seconds since 1970: not the clock, so that two runs give the same")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		log.Fatal("usage: sbom -version VERSION [-epoch SECONDS] BINARY")
	}
	doc, err := describe(flag.Arg(0), *version, time.Unix(*epoch, 0))
	if err != nil {
		log.Fatal(err)
	}
	if err := spdxjson.Write(doc, os.Stdout, spdxjson.Indent("  ")); err != nil {
		log.Fatalf("write the bill of materials: %v", err)
	}
}

// describe makes the document of one binary.
func describe(path, version string, made time.Time) (*spdx.Document, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the modules of %s: %w", path, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("hash %s: %w", path, err)
	}
	sum := sha256.Sum256(content)
	hash, arch := hex.EncodeToString(sum[:]), ""
	for _, s := range info.Settings {
		if s.Key == "GOARCH" {
			arch = s.Value
		}
	}

	name := filepath.Base(path)
	const root = common.ElementID("Package-program")
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      fmt.Sprintf("%s %s linux/%s", name, version, arch),
		DocumentNamespace: "https://github.com/hotprofile/hotprofile/sbom/" + name + "-" + version + "-" + arch + "-" + hash,
		CreationInfo: &spdx.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "The hotprofile Authors"}},
			Created:  made.UTC().Format(time.RFC3339),
		},
		Packages: []*spdx.Package{{
			PackageName: name, PackageSPDXIdentifier: root, PackageVersion: version,
			PackageDownloadLocation: "https://github.com/hotprofile/hotprofile", PackageLicenseConcluded: "NOASSERTION",
			PackageLicenseDeclared: "Apache-2.0", PackageCopyrightText: "NOASSERTION", PrimaryPackagePurpose: "APPLICATION",
			PackageChecksums: []common.Checksum{{Algorithm: common.SHA256, Value: hash}},
		}},
		Relationships: []*spdx.Relationship{{
			RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: common.MakeDocElementID("", string(root)),
			Relationship: common.TypeRelationshipDescribe,
		}},
	}
	add := func(id, path, version, sum string) {
		doc.Packages = append(doc.Packages, &spdx.Package{
			PackageName: path, PackageSPDXIdentifier: common.ElementID(id), PackageVersion: version,
			PackageDownloadLocation: "NOASSERTION", PackageLicenseConcluded: "NOASSERTION",
			PackageLicenseDeclared: "NOASSERTION", PackageCopyrightText: "NOASSERTION", PackageComment: sum,
			PackageExternalReferences: []*spdx.PackageExternalReference{{
				Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: packageURL(path, version),
			}},
		})
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(root)), RefB: common.MakeDocElementID("", id), Relationship: common.TypeRelationshipDependsOn,
		})
	}
	add("Package-go", "stdlib", strings.TrimPrefix(info.GoVersion, "go"), "")
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if filepath.IsAbs(m.Path) || strings.HasPrefix(m.Path, ".") {
			continue // the program's own module
		}
		add(fmt.Sprintf("Package-module-%d", i), m.Path, m.Version, "go.sum "+m.Sum)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		return nil, fmt.Errorf("the bill of materials is not valid: %w", err)
	}
	return doc, nil
}

// packageURL is a module's name in the form of https://github.com/package-url.
func packageURL(path, version string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "pkg:golang/" + strings.Join(parts, "/") + "@" + strings.ReplaceAll(url.PathEscape(version), "+", "%2B")
}
