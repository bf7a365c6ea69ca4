// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command sbom writes the bill of materials of a Go program as SPDX 2.3 in JSON:
// the modules that the linker noted in the binary itself, and the packages of others in
// the list THIRD_PARTY of what it embeds, with package URLs.
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
	"slices"
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
	embedded := flag.String("embedded", "", "the list THIRD_PARTY of what the program embeds")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" {
		log.Fatal("usage: sbom -version VERSION [-epoch SECONDS] [-embedded LIST] BINARY")
	}
	doc, err := describe(flag.Arg(0), *version, time.Unix(*epoch, 0), *embedded)
	if err != nil {
		log.Fatal(err)
	}
	if err := spdxjson.Write(doc, os.Stdout, spdxjson.Indent("  ")); err != nil {
		log.Fatalf("write the bill of materials: %v", err)
	}
}

// describe makes the document of one binary.
func describe(path, version string, made time.Time, embedded string) (*spdx.Document, error) {
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
	add := func(id, path, version, locator, license, sum string) {
		doc.Packages = append(doc.Packages, &spdx.Package{
			PackageName: path, PackageSPDXIdentifier: common.ElementID(id), PackageVersion: version,
			PackageDownloadLocation: "NOASSERTION", PackageLicenseConcluded: "NOASSERTION",
			PackageLicenseDeclared: license, PackageCopyrightText: "NOASSERTION", PackageComment: sum,
			PackageExternalReferences: []*spdx.PackageExternalReference{{
				Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: locator,
			}},
		})
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", string(root)), RefB: common.MakeDocElementID("", id), Relationship: common.TypeRelationshipDependsOn,
		})
	}
	addModule := func(id, path, version, sum string) {
		add(id, path, version, packageURL("golang", path, version), "NOASSERTION", sum)
	}
	addModule("Package-go", "stdlib", strings.TrimPrefix(info.GoVersion, "go"), "")
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if filepath.IsAbs(m.Path) || strings.HasPrefix(m.Path, ".") {
			continue // the program's own module
		}
		addModule(fmt.Sprintf("Package-module-%d", i), m.Path, m.Version, "go.sum "+m.Sum)
	}
	others, err := embeddedPackages(embedded)
	if err != nil {
		return nil, err
	}
	for i, p := range others {
		add(fmt.Sprintf("Package-embedded-%d", i), p.name, p.version, packageURL(p.kind, p.name, p.version), p.license, "embedded")
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		return nil, fmt.Errorf("the bill of materials is not valid: %w", err)
	}
	return doc, nil
}

// embeddedPackage is a package of others whose files a program embeds.
type embeddedPackage struct{ kind, name, version, license string }

// embeddedPackages returns the packages of a list THIRD_PARTY. A line of it is the hash of
// a file, its path, the package such as npm:uplot@1.6.32, and the package's licence.
func embeddedPackages(list string) ([]embeddedPackage, error) {
	if list == "" {
		return nil, nil
	}
	content, err := os.ReadFile(list)
	if err != nil {
		return nil, fmt.Errorf("read the list of embedded files: %w", err)
	}
	var packages []embeddedPackage
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 4 {
			return nil, fmt.Errorf("%s: want hash, file, package and licence, have %q", list, line)
		}
		kind, rest, _ := strings.Cut(fields[2], ":")
		at := strings.LastIndexByte(rest, '@') // names may begin with one
		if at <= 0 {
			return nil, fmt.Errorf("%s: want a package such as npm:uplot@1.6.32, have %q", list, fields[2])
		}
		if p := (embeddedPackage{kind, rest[:at], rest[at+1:], fields[3]}); !slices.Contains(packages, p) {
			packages = append(packages, p)
		}
	}
	return packages, nil
}

// packageURL is a package's name in the form of https://github.com/package-url.
func packageURL(kind, path, version string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "pkg:" + kind + "/" + strings.Join(parts, "/") + "@" + strings.ReplaceAll(url.PathEscape(version), "+", "%2B")
}
