package doctor

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
)

// renewBefore is the remaining validity below which a certificate should be renewed.
const renewBefore = 14 * 24 * time.Hour

// minSpoolBytes is the number of free bytes on the disk of spool_dir below which the doctor warns. Streamed batches may
// use this much: five batches of 2 GiB at the same time.
const minSpoolBytes = 10 << 30

// Misconfigured returns the finding about err, an error in the settings that prevents all other checks.
func Misconfigured(err error) Finding {
	return Finding{"settings", Failed, err.Error(), "correct the environment, the file or the flags: docs/configuration.md"}
}

// checkSettings runs the checks that need no server.
func (p Installation) checkSettings() []Finding {
	return []Finding{
		{Check: "settings", State: OK, Found: "valid; this program is version " + p.Version},
		p.checkCertificate(),
		CheckDisk("disk of spool_dir", cmp.Or(p.Config.SpoolDir, os.TempDir()), minSpoolBytes),
	}
}

// checkCertificate checks whether the TLS certificate is valid and for how long.
func (p Installation) checkCertificate() Finding {
	f := Finding{Check: "certificate", State: OK, Found: "none: a proxy must terminate TLS, or the network must be private"}
	if p.Config.TLSCertFile == "" {
		return f
	}
	const remedy = "renew it: tls_cert_file, tls_key_file"
	pair, err := tls.LoadX509KeyPair(p.Config.TLSCertFile, p.Config.TLSKeyFile)
	if err != nil {
		return Finding{f.Check, Failed, err.Error(), remedy}
	}
	end := pair.Leaf.NotAfter
	left := end.Sub(p.Now())
	if left <= 0 {
		return Finding{f.Check, Failed, "it expired " + end.UTC().Format(terminal.TimeLayout), remedy}
	}
	return newFinding(f.Check, left < renewBefore, Warning, "valid until "+end.UTC().Format(terminal.TimeLayout), remedy)
}

// CheckDisk checks the free bytes of the file system of a folder on this machine. Fewer than minFree are a
// Warning. A folder that cannot be examined is Failed. name is the name of the check.
func CheckDisk(name, folder string, minFree int64) Finding {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return Finding{name, Failed, fmt.Sprintf("%s: %v", folder, err), "create the folder, or set another one"}
	}
	free := int64(fs.Bavail) * int64(fs.Bsize) //nolint:unconvert // their types differ from system to system
	return newFinding(name, free < minFree, Warning, fmt.Sprintf("%s free in %s", formatBytes(free), folder), "make room for "+formatBytes(minFree)+", or set another folder")
}
