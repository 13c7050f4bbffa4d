// Command etcd is etcd's own server. Its module cannot be a tool: its tests need modules that were never published.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
