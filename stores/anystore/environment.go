package anystore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// The environment variables that name a store.
const (
	urlVariable  = "DIBS_STORE"
	fileVariable = "DIBS_STORE_FILE"
)

// maxURL is how long the file of a URL can be, in bytes.
const maxURL = 64 << 10

// FromEnvironment returns the URL of the store that the environment names: in DIBS_STORE, or in the file
// whose path is in DIBS_STORE_FILE, without the line breaks at its end. It returns "" if neither is set.
// An empty variable counts as not set. Two URLs that differ are an error, and so is a file that is missing
// or empty. No error has a URL.
func FromEnvironment(getenv func(string) string) (string, error) {
	url, name := getenv(urlVariable), getenv(fileVariable)
	if name == "" {
		return url, nil
	}
	text, err := readURL(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s: there is no file %s; put the URL of the store into it, or set %s instead", fileVariable, name, urlVariable)
	case err != nil:
		return "", fmt.Errorf("%s: %w", fileVariable, err)
	case text == "":
		return "", fmt.Errorf("%s: the file %s is empty; put the URL of the store into it", fileVariable, name)
	case url != "" && url != text:
		return "", fmt.Errorf("%s and the file of %s name different stores; unset one of the two variables", urlVariable, fileVariable)
	}
	return text, nil
}

// readURL returns the text of a file without the line breaks at its end.
func readURL(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxURL+1))
	if len(text) > maxURL {
		return "", fmt.Errorf("the file %s is longer than %d bytes", name, maxURL)
	}
	return strings.TrimRight(strings.TrimPrefix(string(text), "\ufeff"), "\r\n"), err
}
