package hawkbit

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the hash that DDI demands
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// image is a signed update for swupdate.
type image struct {
	content []byte
	key     string // the file with the certificate that verifies the signature
}

// newImage builds an update with a payload of size bytes. Debian's swupdate demands a CMS signature and a hardware revision.
func newImage(t *testing.T, size int) image {
	t.Helper()
	dir := t.TempDir()
	key, certificate := filepath.Join(dir, "key.pem"), filepath.Join(dir, "certificate.pem")
	runOpenSSL(t, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test", "-keyout", key, "-out", certificate,
		"-addext", "keyUsage=digitalSignature", "-addext", "extendedKeyUsage=emailProtection")
	payload := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	description := fmt.Appendf(nil, `software = {
	version = "1.0";
	hardware-compatibility = [ "1.0" ];
	files: ( { filename = "payload"; path = "@TARGET@"; sha256 = "%x"; } );
}
`, sha256.Sum256(payload))
	description = bytes.ReplaceAll(description, []byte("@TARGET@"), []byte(filepath.Join(dir, "installed")))
	plain, signature := filepath.Join(dir, "sw-description"), filepath.Join(dir, "sw-description.sig")
	must.Succeed(t, os.WriteFile(plain, description, 0o600))
	runOpenSSL(t, "cms", "-sign", "-in", plain, "-out", signature, "-signer", certificate, "-inkey", key, "-outform", "DER", "-nosmimecap", "-binary")
	signed, err := os.ReadFile(signature)
	must.Succeed(t, err)
	var archive bytes.Buffer
	for i, file := range []struct {
		name    string
		content []byte
	}{{"sw-description", description}, {"sw-description.sig", signed}, {"payload", payload}, {"TRAILER!!!", nil}} {
		addToArchive(&archive, i+1, file.name, file.content)
	}
	return image{archive.Bytes(), certificate}
}

func runOpenSSL(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput(); err != nil {
		t.Fatalf("openssl %s: %v\n%s", args[0], err, out)
	}
}

// addToArchive adds a file to a cpio archive in the format that swupdate reads: "new ASCII" with checksums.
func addToArchive(archive *bytes.Buffer, inode int, name string, content []byte) {
	sum := uint32(0)
	for _, b := range content {
		sum += uint32(b)
	}
	pad := func() {
		for archive.Len()%4 != 0 {
			archive.WriteByte(0)
		}
	}
	fmt.Fprintf(archive, "070702%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", inode, 0o100644, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, sum)
	archive.WriteString(name + "\x00")
	pad()
	archive.Write(content)
	pad()
}

// sha1Text returns the SHA1 of the image, as DDI wants it.
func (i image) sha1Text() string {
	return fmt.Sprintf("%x", sha1.Sum(i.content)) //nolint:gosec // the hash that DDI demands
}
