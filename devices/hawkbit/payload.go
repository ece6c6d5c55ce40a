package hawkbit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
)

// MaxAnswer is the maximum length of an answer in bytes, because the buffers of small clients are not longer.
const MaxAnswer = 1100

// Payload is the deployment in the payload of a task. Other members of the payload are ignored, because the same task may be for devices
// that use another protocol and need other members.
type Payload struct {
	Deployment struct {
		Chunks []Chunk `json:"chunks"`
	} `json:"deployment"`
}

// Chunk is one module of a deployment.
type Chunk struct {
	Part      string     `json:"part"`
	Version   string     `json:"version"`
	Name      string     `json:"name"`
	Metadata  []Metadata `json:"metadata,omitempty"`
	Artifacts []Artifact `json:"artifacts"`
}

// Metadata is one pair of texts for the program that installs a chunk.
type Metadata struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Artifact is a file that the device downloads from another server.
type Artifact struct {
	Filename string `json:"filename"`
	Size     int64  `json:"size"`
	Hashes   Hashes `json:"hashes"`
	URL      string `json:"url"`
}

// Hashes are the hashes of a file in hexadecimal digits. Every DDI client needs SHA1. Zephyr's client also needs SHA256.
type Hashes struct {
	SHA1   string `json:"sha1"`
	MD5    string `json:"md5,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// ParsePayload returns the deployment in raw, the payload of a task. The error names the field that is missing or invalid, and the limit. A
// payload with an error is no deployment.
func ParsePayload(raw []byte) (Payload, error) {
	var p Payload
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("payload.deployment: %w", err)
	}
	if len(p.Deployment.Chunks) == 0 {
		return p, errors.New("payload.deployment.chunks: must have at least one chunk")
	}
	for i, c := range p.Deployment.Chunks {
		if err := c.checkFields(fmt.Sprintf("payload.deployment.chunks[%d]", i)); err != nil {
			return p, err
		}
	}
	text, err := encodeJSON(p.toBody(1<<31 - 1))
	if err == nil && len(text) > MaxAnswer {
		err = fmt.Errorf("payload.deployment: has %d bytes as sent to devices, but may have at most %d", len(text), MaxAnswer)
	}
	return p, err
}

// metadataPayload returns a deployment without artifacts. The metadata of the deployment is payload, which is not a deployment itself. kind may
// be empty.
func metadataPayload(kind string, payload json.RawMessage) (deployment Payload) {
	deployment.Deployment.Chunks = []Chunk{{Part: "task", Version: "1", Name: cmp.Or(kind, "task"), Metadata: []Metadata{{"payload", string(payload)}}}}
	return deployment
}

// encodeJSON returns value as JSON. Characters such as & are not escaped, because small clients do not decode escapes in links.
func encodeJSON(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSpace(text.Bytes()), err
}

// checkFields returns an error that begins with field if the chunk is invalid.
func (c Chunk) checkFields(field string) error {
	for name, value := range map[string]string{"part": c.Part, "version": c.Version, "name": c.Name} {
		if value == "" {
			return fmt.Errorf("%s.%s: must not be empty", field, name)
		}
	}
	if len(c.Artifacts) == 0 {
		return fmt.Errorf("%s.artifacts: must have at least one artifact", field)
	}
	for i, a := range c.Artifacts {
		if err := a.checkFields(fmt.Sprintf("%s.artifacts[%d]", field, i)); err != nil {
			return err
		}
	}
	return nil
}

func (a Artifact) checkFields(field string) error {
	link, err := url.Parse(a.URL)
	switch {
	case a.Filename == "":
		return fmt.Errorf("%s.filename: must not be empty", field)
	case a.Size <= 0:
		return fmt.Errorf("%s.size: must be the number of bytes", field)
	case err != nil || link.Host == "" || link.Scheme != "http" && link.Scheme != "https":
		return fmt.Errorf("%s.url: must be a complete http:// or https:// address", field)
	case !isHex(a.Hashes.SHA1, 40):
		return fmt.Errorf("%s.hashes.sha1: must have 40 hexadecimal digits", field)
	case a.Hashes.MD5 != "" && !isHex(a.Hashes.MD5, 32):
		return fmt.Errorf("%s.hashes.md5: must have 32 hexadecimal digits", field)
	case a.Hashes.SHA256 != "" && !isHex(a.Hashes.SHA256, 64):
		return fmt.Errorf("%s.hashes.sha256: must have 64 hexadecimal digits", field)
	}
	return nil
}

// isHex reports whether text has exactly this number of hexadecimal digits.
func isHex(text string, digits int) bool {
	return len(text) == digits && regexp.MustCompile(`^[0-9a-fA-F]+$`).MatchString(text)
}

// ForeignHosts returns the hosts of artifacts that differ from the host of publicURL, each once. With its default configuration, swupdate sends
// the token of the device to these hosts.
func (p Payload) ForeignHosts(publicURL string) (hosts []string) {
	seen := map[string]bool{}
	if own, err := url.Parse(publicURL); err == nil {
		seen[own.Host] = true
	}
	for _, c := range p.Deployment.Chunks {
		for _, a := range c.Artifacts {
			if link, err := url.Parse(a.URL); err == nil && !seen[link.Host] {
				seen[link.Host] = true
				hosts = append(hosts, link.Host)
			}
		}
	}
	return hosts
}

// deploymentBody is a deployment as DDI clients read it.
type deploymentBody struct {
	ID         string `json:"id"`
	Deployment struct {
		Download string      `json:"download"`
		Update   string      `json:"update"`
		Chunks   []chunkBody `json:"chunks"`
	} `json:"deployment"`
}

type chunkBody struct {
	Part      string         `json:"part"`
	Version   string         `json:"version"`
	Name      string         `json:"name"`
	Metadata  []Metadata     `json:"metadata,omitempty"`
	Artifacts []artifactBody `json:"artifacts"`
}

type artifactBody struct {
	Filename string          `json:"filename"`
	Hashes   Hashes          `json:"hashes"`
	Size     int64           `json:"size"`
	Links    map[string]link `json:"_links"`
}

// toBody returns the deployment as the body of the answer for the action actionID. Download and update are always "forced", because a
// device that has a slot must start. A client that reads "skip" would report success at once.
func (p Payload) toBody(actionID int64) (body deploymentBody) {
	body.ID = fmt.Sprint(actionID)
	body.Deployment.Download, body.Deployment.Update = "forced", "forced"
	for _, c := range p.Deployment.Chunks {
		chunk := chunkBody{Part: c.Part, Version: c.Version, Name: c.Name, Metadata: c.Metadata, Artifacts: []artifactBody{}}
		for _, a := range c.Artifacts {
			name := "download"
			if u, err := url.Parse(a.URL); err == nil && u.Scheme == "http" {
				name = "download-http"
			}
			chunk.Artifacts = append(chunk.Artifacts, artifactBody{a.Filename, a.Hashes, a.Size, map[string]link{name: {a.URL}}})
		}
		body.Deployment.Chunks = append(body.Deployment.Chunks, chunk)
	}
	return body
}
