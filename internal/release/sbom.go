package main

import (
	"debug/buildinfo"
	"encoding/json"
	"net/url"
	"strings"
)

// bill is a software bill of materials: CycloneDX 1.6 as JSON.
type bill struct {
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Version  int    `json:"version"`
	Metadata struct {
		Component component `json:"component"`
	} `json:"metadata"`
	Components []component `json:"components"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	URL     string `json:"purl"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// sbom lists what a binary was built from, as the binary says it: its modules and Go's
// standard library. The digest is the binary's SHA-256 in hex.
func sbom(info *buildinfo.BuildInfo, digest string) ([]byte, error) {
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1}
	b.Metadata.Component = componentOf("application", info.Main.Path, info.Main.Version)
	b.Metadata.Component.Hashes = []hash{{"SHA-256", digest}}
	// Scanners know the standard library by this name.
	b.Components = append(b.Components, componentOf("library", "stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	for _, m := range info.Deps {
		b.Components = append(b.Components, componentOf("library", m.Path, m.Version))
	}
	return b.marshal()
}

// sbom says that the client's package contains nothing of others. The digest is the package's
// SHA-256 in hex.
func (c *client) sbom(version, digest string) ([]byte, error) {
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1, Components: []component{}}
	version = strings.TrimPrefix(version, "v")
	purl := "pkg:" + c.kind + "/dibs@" + url.QueryEscape(version)
	b.Metadata.Component = component{Type: "library", Ref: purl, Name: "dibs", Version: version, URL: purl, Hashes: []hash{{"SHA-256", digest}}}
	return b.marshal()
}

func (b *bill) marshal() ([]byte, error) {
	text, err := json.MarshalIndent(b, "", "  ")
	return append(text, '\n'), err
}

// componentOf names a module also as a package URL, by which scanners look it up.
func componentOf(kind, path, version string) component {
	purl := "pkg:golang/" + strings.ToLower(path) + "@" + url.QueryEscape(version)
	return component{Type: kind, Ref: purl, Name: path, Version: version, URL: purl}
}
