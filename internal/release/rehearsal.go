package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// printed is what the ten lines of each client's README print.
var printed = regexp.MustCompile(`^page 0 with fence \d+\npage 1 with fence \d+\npage 2 with fence \d+\n100\n$`)

// tryClient does what the client's README says, in an empty environment without a network: it
// installs the package, starts dibs serve, and runs the ten lines. As root it does so as nobody.
func (r *release) tryClient(ctx context.Context, c *client, path, dibs string) error {
	page, err := os.ReadFile(filepath.Join(r.clone, c.dir, "README.md"))
	if err != nil {
		return err
	}
	var blocks [3]string // install, serve, the ten lines
	for i, wanted := range [][2]string{{"sh", regexp.QuoteMeta(c.file)}, {"sh", "dibs serve"}, {c.fence, "once"}} {
		if blocks[i], err = section(string(page), wanted[0], wanted[1]); err != nil {
			return fmt.Errorf("%s/README.md: %w", c.dir, err)
		}
	}
	home, err := os.MkdirTemp("", "dibs-user") // short, because the path of a socket must be
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	socket := filepath.Join(home, "dibs.sock")
	serve := strings.ReplaceAll(strings.TrimSpace(blocks[1]), "/tmp/dibs.sock", socket)
	script := strings.Join([]string{
		c.empty, blocks[0],
		serve + " >serve.log & trap 'kill $!' EXIT",
		"until grep -q 'listening on' serve.log; do kill -0 $!; sleep 0.1; done",
		c.run + " >printed",
	}, "\n")
	if err := errors.Join(
		copyFile(path, filepath.Join(home, filepath.Base(path)), 0o644),
		copyFile(dibs, filepath.Join(home, "bin", "dibs"), 0o755),
		os.WriteFile(filepath.Join(home, c.program), []byte(blocks[2]), 0o644),
	); err != nil {
		return err
	}
	shell := exec.CommandContext(ctx, "sh", "-ec", script)
	shell.Dir = home
	shell.Env = []string{
		"HOME=" + home, "PATH=" + filepath.Join(home, "bin") + ":" + os.Getenv("PATH"), "DIBS_SERVER=unix:" + socket,
		// Nothing is downloaded.
		"PIP_NO_INDEX=1", "npm_config_offline=true", "http_proxy=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1",
	}
	if os.Geteuid() == 0 {
		if shell.SysProcAttr, err = asNobody(home); err != nil {
			return err
		}
	}
	if said, err := shell.CombinedOutput(); err != nil {
		return fmt.Errorf("%s\n%w\n%s", script, err, said)
	}
	said, err := os.ReadFile(filepath.Join(home, "printed"))
	if err == nil && !printed.Match(said) {
		err = fmt.Errorf("the ten lines print %q", said)
	}
	if licences, _ := filepath.Glob(filepath.Join(home, c.licence)); err == nil && len(licences) != 1 {
		err = fmt.Errorf("%d licences are installed", len(licences))
	}
	return err
}

// asNobody gives all files of the folder to the user nobody, and returns what starts a process of
// that user.
func asNobody(folder string) (*syscall.SysProcAttr, error) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(nobody.Uid)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	})
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}, err
}

// copyFile copies a file, into a new folder if need be.
func copyFile(from, to string, mode os.FileMode) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, mode))
}

// section returns the first block of code of the page in the language that has the pattern.
func section(page, language, pattern string) (string, error) {
	wanted := regexp.MustCompile(pattern)
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(page, -1) {
		if wanted.MatchString(block[1]) {
			return block[1], nil
		}
	}
	return "", fmt.Errorf("it has no %s with %s", language, pattern)
}
