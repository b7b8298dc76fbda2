// Package missing says how to make a file that a setting names and that is missing.
package missing

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// placeholder stands for the file's name in the command that makes it.
const placeholder = "FILE"

// plain matches a name that a shell takes as it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./@%+=:,-]+$`)

// File returns the error of opening a file. If the file is missing, the error has the command that makes
// it, in which FILE is the file's name.
func File(err error, name, command string) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("there is no file %s; make one: %s", name, strings.ReplaceAll(command, placeholder, Word(name)))
}

// Word returns a name as a shell takes it.
func Word(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}
