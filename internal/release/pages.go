package main

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"regexp"
)

// getIt is the README's section from the first tagged version on.
//
//go:embed getit.md
var getIt []byte

// untagged finds the section until then.
var untagged = regexp.MustCompile(`(?s)## Get it\n.*?\n(## )`)

// tagReadme lets the README say what is true when a version is tagged.
func tagReadme(repository string) error {
	name := filepath.Join(repository, "README.md")
	page, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if !untagged.Match(page) {
		return errors.New(`README.md has no section "Get it"`)
	}
	return os.WriteFile(name, untagged.ReplaceAll(page, append(getIt[:len(getIt):len(getIt)], "$1"...)), 0o644)
}

// toInstall finds the README's lines that install everything.
var toInstall = regexp.MustCompile("(?s)\n## Get it\n\n```sh\n(.*?)```")

// installLines returns the README's lines that install everything.
func installLines(repository string) (string, error) {
	page, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		return "", err
	}
	lines := toInstall.FindSubmatch(page)
	if lines == nil {
		return "", errors.New(`README.md has no lines of sh under "Get it"`)
	}
	return string(lines[1]), nil
}
