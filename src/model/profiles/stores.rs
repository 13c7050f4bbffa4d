//! Drivers of object stores.

use super::words::{To, Word};
use super::{FsGroupUse, Key, PLAIN, Profile, Quirk, key, other};
use crate::drivers::{blobfuse::Blobfuse, rclone::Rclone, s3::S3};

/// Words of s3fs that are options of flexvol, or that have no meaning here.
const S3FS: &[Word] = &[
    Word("uid", To::Option("uid")),
    Word("gid", To::Option("gid")),
    Word("umask", To::Option("umask")),
    Word("allow_other", To::Always),
    Word("nonempty", To::Always),
    Word("noxattr", To::Always),
    Word("big_writes", To::Nothing),
    Word("max_background", To::Nothing),
    Word("instance_name", To::Nothing),
    Word("dbglevel", To::Nothing),
    Word("curldbg", To::Nothing),
    Word("sigv1", To::Nothing),
    Word("ensure_diskfree", To::Nothing),
];

/// `azure/blobfuse`.
pub(super) const BLOBFUSE: Profile = Profile {
    name: "azure/blobfuse",
    driver: &Blobfuse,
    summary: "a container of Azure's blob storage",
    keys: &[
        key("container", "container", "the container"),
        key(
            "mountoptions",
            "mountOptions",
            "words for blobfuse: -o uid=1000 --file-cache-timeout-in-seconds=120",
        ),
        other("tmppath", "no effect: each volume has a cache of its own"),
        other("driverpath", "no effect: blobfuse2 of the node serves the volume"),
    ],
    secrets: &[
        key("accountname", "accountname", "the storage account"),
        key("accountkey", "accountkey", "its key"),
        key("accountsastoken", "accountsastoken", "a shared access signature instead of the key"),
        key("blobendpoint", "blobendpoint", "URL of the store, for a cloud other than Azure's public one"),
    ],
    fs_group: FsGroupUse::Ignored,
    quirks: &[Quirk::ShellWords, Quirk::Words(BLOBFUSE_WORDS)],
    deviations: &[
        "each volume has its own cache, removed with it: in the original, volumes with the same tmppath shared one, \
         which destroyed files",
        "blobfuse2 serves the volume instead of blobfuse: only words in mountoptions that blobfuse2 has too take \
         effect",
        "the Secret needs either accountkey or accountsastoken: no identity of the node is used",
        "leftovers of a volume are never removed with their content",
    ],
    example: &[
        ("container", "CONTAINER-NAME"),
        ("tmppath", "/tmp/blobfuse"),
        ("mountoptions", "--file-cache-timeout-in-seconds=120"),
    ],
    example_secret: &["accountname", "accountkey"],
    ..PLAIN
};

/// Words of blobfuse. Words that read files of the node, or send data elsewhere, are absent:
/// flexvol's driver refuses them.
const BLOBFUSE_WORDS: &[Word] = &[
    Word("uid", To::Option("uid")),
    Word("gid", To::Option("gid")),
    Word("allow_other", To::Always),
    Word("nonempty", To::Always),
    Word("--file-cache-timeout-in-seconds", To::Option("cacheTimeout")),
    Word("--tmp-path", To::Nothing),
    Word("--log-level", To::Nothing),
    Word("--use-https", To::Nothing),
    Word("--use-attr-cache", To::Nothing),
    Word("--use-adls", To::Nothing),
    Word("--no-symlinks", To::Nothing),
    Word("--max-concurrency", To::Nothing),
    Word("--cache-size-mb", To::Nothing),
    Word("--cache-poll-timeout-msec", To::Nothing),
    Word("--max-eviction", To::Nothing),
    Word("--empty-dir-check", To::Nothing),
    Word("--upload-modified-only", To::Nothing),
    Word("--set-content-type", To::Nothing),
    Word("--background-download", To::Nothing),
    Word("--invalidate-on-sync", To::Nothing),
    Word("--cancel-list-on-mount-seconds", To::Nothing),
    Word("--high-disk-threshold", To::Nothing),
    Word("--low-disk-threshold", To::Nothing),
    Word("--pre-mount-validate", To::Nothing),
    Word("--basic-remount-check", To::Nothing),
];

/// `alicloud/oss`.
pub(super) const OSS: Profile = Profile {
    name: "alicloud/oss",
    driver: &S3,
    summary: "a bucket of Alibaba Cloud's OSS",
    keys: &[
        key("bucket", "bucket", "the bucket"),
        key("url", "endpoint", "the store; without a scheme it is https"),
        key("otherOpts", "mountOptions", "words for ossfs: -o max_stat_cache_size=0 -o umask=0022"),
        other("akId", "access key ID, which belongs in the Secret"),
        other("akSecret", "secret access key, which belongs in the Secret"),
    ],
    secrets: &[
        key("akId", "accessKeyID", "the access key ID"),
        key("akSecret", "secretAccessKey", "the secret access key"),
    ],
    any_case: true,
    // The store knows buckets by host name only.
    defaults: &[("pathStyle", "false")],
    quirks: &[
        Quirk::KeyAsSecret("akId", "accessKeyID"),
        Quirk::KeyAsSecret("akSecret", "secretAccessKey"),
        Quirk::ShellWords,
        Quirk::Words(S3FS),
    ],
    deviations: &[
        "s3fs accesses the store by the S3 protocol: the original used ossfs",
        "a url without a scheme means https; in the original it meant http",
        "no credentials of the node are used: a volume without keys is refused",
        "a pod's fsGroup may read and write all files, and kubelet does not chown them, as that copies each object: \
         --set fsGroup=true enables it",
    ],
    example: &[
        ("bucket", "sigma-python"),
        ("url", "oss-cn-hangzhou.aliyuncs.com"),
        ("otherOpts", "-o max_stat_cache_size=0 -o allow_other"),
    ],
    example_secret: &["akId", "akSecret"],
    ..PLAIN
};

/// `ibm/ibmc-s3fs`.
pub(super) const IBM: Profile = Profile {
    name: "ibm/ibmc-s3fs",
    driver: &S3,
    summary: "a bucket of IBM Cloud Object Storage",
    keys: IBM_KEYS,
    secrets: &[
        key("access-key", "accessKeyID", "the access key ID"),
        key("secret-key", "secretAccessKey", "the secret access key"),
        key("api-key", "api-key", "a key of IBM's IAM, which overrides the access key"),
        other("service-instance-id", "no effect: s3fs does not need it"),
        other("ca-bundle-crt", "no effect: the node must trust the store's certificate"),
    ],
    any_case: true,
    defaults: &[("pathStyle", "true")],
    fs_group: FsGroupUse::Owner,
    quirks: &[
        Quirk::KeysAsWords(IBM_WORDS),
        Quirk::KeysAsFlags(&[
            ("kernel-cache", "kernel_cache"),
            ("auto_cache", "auto_cache"),
            ("use-xattr", "use_xattr"),
        ]),
        Quirk::WordsBefore("mp_umask=0002"),
        Quirk::WordsAfter("add-mount-param"),
        Quirk::Words(S3FS),
        Quirk::ReadOnlyAs("access-mode", "ReadOnlyMany"),
    ],
    deviations: &[
        "options that are left out are not passed to s3fs: the original passed zeros",
        "supportsMetrics is false: df of an unreachable store would hang kubelet",
        "service-ip has no effect: the node looks up the store by its name",
        "ca-bundle-crt has no effect: let the node trust the store's certificate",
        "debug-level and curl-debug have no effect: with them, s3fs would print what it signs with",
    ],
    example: &[
        ("bucket", "web"),
        ("endpoint", "https://s3.eu-de.cloud-object-storage.appdomain.cloud"),
        ("region", "eu-de-standard"),
        ("parallel-count", "20"),
    ],
    example_secret: &["access-key", "secret-key"],
    ..PLAIN
};

const IBM_KEYS: &[Key] = &[
    key("bucket", "bucket", "the bucket"),
    key("object-path", "prefix", "prefix of the names of the objects"),
    key("object-store-endpoint", "endpoint", "URL of the store; it overrides endpoint"),
    key("object-store-storage-class", "region", "its region; it overrides region"),
    key("iam-endpoint", "iamEndpoint", "server that turns an API key into a token"),
    other("access-mode", "ReadOnlyMany makes the volume read-only"),
    other("chunk-size-mb", "multipart_size of s3fs"),
    other("parallel-count", "parallel_count of s3fs"),
    other("multireq-max", "multireq_max of s3fs"),
    other("stat-cache-size", "max_stat_cache_size of s3fs"),
    other("stat-cache-expire-seconds", "stat_cache_expire of s3fs"),
    other("s3fs-fuse-retry-count", "retries of s3fs"),
    other("connect-timeout", "connect_timeout of s3fs, in seconds"),
    other("readwrite-timeout", "readwrite_timeout of s3fs, in seconds"),
    other("tls-cipher-suite", "cipher_suites of s3fs; default leaves them to it"),
    other("kernel-cache", "keep closed files in the kernel's cache"),
    other("auto_cache", "the same, as long as they do not change"),
    other("use-xattr", "support extended attributes"),
    other("add-mount-param", "further options of s3fs, between commas or spaces"),
    other("debug-level", "no effect: s3fs prints what is wrong"),
    other("curl-debug", "no effect: secrets would be printed"),
    other("service-ip", "no effect: the node looks up the store by its name"),
];

const IBM_WORDS: &[(&str, &str)] = &[
    ("chunk-size-mb", "multipart_size"),
    ("parallel-count", "parallel_count"),
    ("multireq-max", "multireq_max"),
    ("stat-cache-size", "max_stat_cache_size"),
    ("stat-cache-expire-seconds", "stat_cache_expire"),
    ("s3fs-fuse-retry-count", "retries"),
    ("connect-timeout", "connect_timeout"),
    ("readwrite-timeout", "readwrite_timeout"),
    ("tls-cipher-suite", "cipher_suites"),
];

/// `awprice/gcs`.
pub(super) const GCS: Profile = Profile {
    name: "awprice/gcs",
    driver: &Rclone,
    summary: "a bucket of Google Cloud Storage",
    keys: &[
        other("bucket", "the bucket"),
        other("subPath", "a directory of it"),
        other("dirMode", "mode of all directories, 0755 by default"),
        other("fileMode", "mode of all files, 0644 by default"),
    ],
    secrets: &[key(
        "service_account_credentials",
        "service_account_credentials",
        "key of a service account, in JSON",
    )],
    defaults: &[("remote", "google cloud storage"), ("umask", "0000")],
    fs_group: FsGroupUse::Ignored,
    quirks: &[
        Quirk::PathOf("path", ["bucket", "subPath"]),
        Quirk::KeysAsWords(&[("dirMode", "dir-perms"), ("fileMode", "file-perms")]),
        Quirk::WordsBefore("dir-perms=0755,file-perms=0644"),
        Quirk::WithoutSecret("service_account_credentials", "backend.anonymous", "true"),
    ],
    deviations: &[
        "rclone serves the volume instead of gcsfuse: files are written from beginning to end, unless mountOptions \
         have vfs-cache-mode=writes",
        "the identity of the node is never used: without service_account_credentials in the Secret, only public \
         buckets can be used",
        "each volume is its own mount at its target: the original put a symlink there, to a mount that volumes shared",
    ],
    example: &[("bucket", "web"), ("subPath", "html")],
    example_secret: &["service_account_credentials"],
    ..PLAIN
};
