package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"syscall"
	"time"
)

// renewBefore is the remaining validity below which a certificate should be renewed.
const renewBefore = 14 * 24 * time.Hour

// minSpoolBytes is the number of free bytes on the disk of spool_dir below which the doctor warns. Streamed batches may
// use this much: five batches of 2 GiB at the same time.
const minSpoolBytes = 10 << 30

// Misconfigured returns the finding for settings that are so wrong that no check can run. err says what is wrong.
func Misconfigured(err error) Finding {
	return Finding{"settings", Failed, err.Error(), "correct the environment, the file or the flags: docs/configuration.md"}
}

// checkSettings runs the checks that need no server.
func (p Installation) checkSettings() []Finding {
	list := runChecks(p, []check[Installation]{
		{"settings", func(p Installation) (State, string) { return OK, "valid; this program is version " + p.Version }, ""},
		{"certificate", Installation.checkCertificate, "renew it: tls_cert_file, tls_key_file"},
	})
	spool := p.Config.SpoolDir
	if spool == "" {
		spool = os.TempDir()
	}
	return append(list, CheckDisk("disk of spool_dir", spool, minSpoolBytes))
}

// checkCertificate returns whether the TLS certificate is valid and for how long.
func (p Installation) checkCertificate() (State, string) {
	if p.Config.TLSCertFile == "" {
		return OK, "none: a proxy must terminate TLS, or the network must be private"
	}
	pair, err := tls.LoadX509KeyPair(p.Config.TLSCertFile, p.Config.TLSKeyFile)
	if err != nil {
		return Failed, err.Error()
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return Failed, err.Error()
	}
	left := leaf.NotAfter.Sub(p.Now())
	found := "valid until " + leaf.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case left <= 0:
		return Failed, "it expired " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case left < renewBefore:
		return Warning, found
	}
	return OK, found
}

// CheckDisk checks the free bytes of the file system of a folder on this machine. Fewer than minFree are a
// Warning. A folder that cannot be examined is Failed. name is the name of the check.
func CheckDisk(name, folder string, minFree int64) Finding {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return Finding{name, Failed, fmt.Sprintf("%s: %v", folder, err), "create the folder, or set another one"}
	}
	free := int64(fs.Bavail) * int64(fs.Bsize) //nolint:unconvert // their types differ from system to system
	f := Finding{Check: name, State: OK, Found: fmt.Sprintf("%s free in %s", formatBytes(free), folder)}
	if free < minFree {
		f.State, f.Remedy = Warning, "make room for "+formatBytes(minFree)+", or set another folder"
	}
	return f
}
