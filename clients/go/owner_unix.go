//go:build unix

package idem

import (
	"io/fs"
	"os"
	"syscall"
)

// isTrusted: the file belongs to root or to this user.
func isTrusted(info fs.FileInfo) bool {
	stat, is := info.Sys().(*syscall.Stat_t)
	return is && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
}
