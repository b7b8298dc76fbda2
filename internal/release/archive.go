package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"os"
	"path"
	"time"
)

// packed is a file in an archive.
type packed struct {
	name string // with slashes
	text []byte
	mode int64
}

// archive writes the files into a new .tar.gz, below a folder of that name. The same files
// and time make the same archive.
func archive(to, folder string, files []packed, when time.Time) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	defer func() { err = errors.Join(err, w.Close(), z.Close(), f.Close()) }()
	for _, p := range files {
		header := &tar.Header{Name: path.Join(folder, p.name), Size: int64(len(p.text)), Mode: p.mode, ModTime: when}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(p.text); err != nil {
			return err
		}
	}
	return nil
}
