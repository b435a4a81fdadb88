package onceonly.kafka;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.PositionOutputStream;

/** A new file on a local disk. After it was closed, its content and its name survive a power failure. */
final class DurableFile implements OutputFile {
  private static final int BUFFER = 1 << 20; // bytes

  private final Path path;

  DurableFile(Path path) {
    this.path = path;
  }

  @Override
  public PositionOutputStream create(long blockSize) throws IOException {
    Files.createDirectories(path.getParent());
    return new Stream(FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE), path);
  }

  @Override
  public PositionOutputStream createOrOverwrite(long blockSize) throws IOException {
    return create(blockSize);
  }

  @Override
  public boolean supportsBlockSize() {
    return false;
  }

  @Override
  public long defaultBlockSize() {
    return 0;
  }

  private static final class Stream extends PositionOutputStream {
    private final FileChannel channel;
    private final Path path;
    private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER);
    private long position;

    Stream(FileChannel channel, Path path) {
      this.channel = channel;
      this.path = path;
    }

    @Override
    public long getPos() {
      return position;
    }

    @Override
    public void write(int value) throws IOException {
      write(new byte[] {(byte) value}, 0, 1);
    }

    @Override
    public void write(byte[] bytes, int start, int length) throws IOException {
      position += length;
      if (length > buffer.remaining()) {
        flush();
      }
      if (length <= buffer.remaining()) {
        buffer.put(bytes, start, length);
        return;
      }
      writeAll(ByteBuffer.wrap(bytes, start, length));
    }

    @Override
    public void flush() throws IOException {
      buffer.flip();
      writeAll(buffer);
      buffer.clear();
    }

    private void writeAll(ByteBuffer bytes) throws IOException {
      while (bytes.hasRemaining()) {
        channel.write(bytes);
      }
    }

    @Override
    public void close() throws IOException {
      if (!channel.isOpen()) {
        return;
      }
      try (channel) {
        flush();
        channel.force(true);
      }
      // A name survives when each folder above it does: any of them may be new.
      for (Path folder = path.toAbsolutePath().getParent(); folder != null; folder = folder.getParent()) {
        try (FileChannel names = FileChannel.open(folder, StandardOpenOption.READ)) {
          names.force(true);
        } catch (AccessDeniedException error) {
          // the folder of another user, which was there before
        }
      }
    }
  }
}
