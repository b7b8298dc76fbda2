//go:build !nightly

package main

import "errors"

// onEtcd are the contenders on etcd. An etcd is a large program to compile, so it is built with
// the tag nightly only.
var onEtcd []contender

const etcdArg = "__trial-etcd"

func serveEtcd([]string) error { return errors.New("etcd needs -tags nightly") }
