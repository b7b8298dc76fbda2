// Package draw draws the pictures of the documentation. A picture has no words and no figures of its
// own: they are those of the table that follows it on its page, or those of a recording beside it. So
// a page and its picture cannot differ, and a reader who cannot see the picture reads the table.
package draw

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// folder has the pictures, below the root of the tree.
const folder = "docs/pictures"

// image matches the line of a page where a picture is: what it shows, and its name.
var image = regexp.MustCompile(`(?m)^!\[(.+)\]\((?:[./a-z]+/)?pictures/([a-z-]+)\.svg\)$`)

// Write draws every picture of the tree below root into its file.
func Write(root string) error {
	all, err := All(root)
	for name, text := range all {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	return err
}

// All returns the pictures of the README and of the pages below docs, by the names of their files.
func All(root string) (map[string]string, error) {
	all := map[string]string{}
	page := func(name string) error {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, at := range image.FindAllStringSubmatchIndex(string(text), -1) {
			p := picture{shows: string(text[at[2]:at[3]])}
			file := folder + "/" + string(text[at[4]:at[5]])
			svg, err := p.of(filepath.Join(root, file)+".cast", string(text[:at[0]]), string(text[at[1]:]))
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, file, err)
			}
			all[file+".svg"] = svg
		}
		return nil
	}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".md") {
			err = page(name)
		}
		return err
	})
	return all, errors.Join(err, page(filepath.Join(root, "README.md")))
}

// of draws a picture that stands between two parts of its page: from its recording, or from the
// first table below it.
func (p *picture) of(recording, before, after string) (string, error) {
	_, heading, _ := strings.Cut(before[max(0, strings.LastIndex(before, "\n#")):], " ")
	p.title, _, _ = strings.Cut(heading, "\n")
	text, err := os.ReadFile(recording)
	if err == nil {
		return p.recording(text)
	}
	after, _, _ = strings.Cut(after, "\n#")
	rows := table(after)
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	case len(rows) < 2:
		return "", errors.New("no table follows it")
	case rows[0][0] == "what":
		return p.bars(rows[1:])
	}
	return p.messages(rows)
}

// table returns the cells of the first table of a text, without their marks.
func table(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		cells, ok := strings.CutPrefix(strings.TrimSpace(line), "| ")
		switch {
		case ok:
			var row []string
			for cell := range strings.SplitSeq(strings.TrimSuffix(cells, "|"), "|") {
				row = append(row, strings.TrimSpace(marks.ReplaceAllString(cell, "")))
			}
			rows = append(rows, row)
		case len(rows) > 0 && !strings.HasPrefix(line, "|---"):
			return rows
		}
	}
	return rows
}

// marks are those of bold text and of code, and the targets of links.
var marks = regexp.MustCompile("\\*\\*|`|\\]\\([^)]*\\)|\\[")
